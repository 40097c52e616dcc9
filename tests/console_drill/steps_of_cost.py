"""Steps 9, 10 and 12: what a console costs, how soon it shows large fleets, and how it lives behind a proxy."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from attrs import frozen
from tablestore import PutRowItem, Row

from streamclient.core.worker_info import WorkerInfo
from streamclient.tablestore import TablestoreStreamApi
from streamclient.worker.lease import LeaseManager
from streamclient.worker.lease.lease_rows import CHECKPOINT, COUNTER, OWNER, PARENTS, STEALER, format_parents, key_of
from streamclient.worker.lease.worker_directory import BEAT, INFO, NONCE, STATE, WAKE, WORKER_STATUS_TYPE
from tests.console_drill.buffering_proxy import BufferingProxy
from tests.console_drill.scenes import document, fleet_of
from tests.console_drill.stand import (
    FLEET_WORD,
    STATUS,
    TABLE,
    Console,
    Server,
    Stand,
    awaited,
    check,
    equal,
    pause,
    text_of,
    within,
)
from tests.console_drill.steps_of_server import put
from tests.stage import IGNORE, make_table, write

UNWATCHED_SECONDS = 60.0
LINGER_SECONDS = 25.0
"""The time after the last viewer within which a console ends its reading: ten seconds, and a round that runs."""

TABS, TABS_SECONDS = 10, 45.0

BACK_SECONDS = 5.0
GONE_SECONDS = 3.0
"""The length of an outage: after it the next try comes within 4 s by the rule of back-off."""

PICTURE_SECONDS = 1.0
SHARDS = 1_000
GROUPS_SECONDS = 10.0
ROWS_OF_GROUPS = 100_000
MOST_GROUPS_BYTES = 200_000
WORKERS = 20

GONE = r"Failed to load resource|ERR_|50\d"
"""What the browser says of a service that is gone."""

LOOKS_SECONDS = 5.0
LONGEST_GAP_SECONDS = 40.0
"""The longest time without an answer behind a proxy: 30 s until the page leaves a silent feed, and a poll."""


MOST_ANSWERS_A_SECOND = 2.0
"""The most answers that a page of a fleet has by polling: a reading every 2 s brings news of a few documents."""


# --- 9 ---------------------------------------------------------------------------------------------------------------


def costs(stand: Stand) -> str:
    """Count requests without a viewer, for a hidden tab, one tab and ten; end the service and let it return."""
    data = str(stand.directory / "data")
    server = stand.server("--data", data)
    make_table(server.client(), TABLE)
    make_rows(server, [Made(shard, "worker-1") for shard in shards_of(server)])
    console, _ = stand.console(server, FLEET_WORD)
    equal(requests_in(server, UNWATCHED_SECONDS), 0, "requests before the first viewer")
    with stand.page(console, f"fleets/{TABLE}") as page:
        check(requests_in(server, 10.0) > 0, "a watched fleet is not read")
        hide(page)
        awaited("the end of reading for a hidden tab", lambda: requests_in(server, 8.0) == 0)
        equal(requests_in(server, UNWATCHED_SECONDS / 2), 0, "requests for a hidden tab")
    one = tabs(stand, server, console, 1)
    ten = tabs(stand, server, console, TABS)
    one = max(one, tabs(stand, server, console, 1))  # a busy machine reads less often, with one tab or many
    check(ten <= one * 1.25, f"{TABS} tabs cost {ten} requests in {TABS_SECONDS:g} s, one costs {one}")
    pause(LINGER_SECONDS)
    equal(requests_in(server, UNWATCHED_SECONDS), 0, "requests after the last viewer")
    told, seconds = returns(stand, server, console, data)
    return (
        f"0 requests in {UNWATCHED_SECONDS:g} s without a viewer, 0 for a hidden tab; in {TABS_SECONDS:g} s one tab "
        f"cost {one}, {TABS} tabs {ten}; service gone: {told!r}; live again {seconds:.1f} s after its return"
    )


def requests_in(server: Server, seconds: float) -> int:
    before = server.request_count()
    pause(seconds)
    return server.request_count() - before


def hide(page: Any) -> None:
    """Tell the page what a browser tells a tab that is not seen: without a window no tab is ever hidden."""
    page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', { get: () => true, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )


def tabs(stand: Stand, server: Server, console: Console, count: int) -> int:
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(stand.page(console, f"fleets/{TABLE}"))
        return requests_in(server, TABS_SECONDS)


def returns(stand: Stand, server: Server, console: Console, data: str) -> tuple[str, float]:
    """End the service below an open page, and start it again at the same port."""
    with stand.page(console, f"fleets/{TABLE}", complaints=GONE) as page:
        stale = page.locator("body.stale, body.old")
        awaited("live data", lambda: stale.count() == 0)
        read = document(console)["read_micros"]
        stand.end(server.process)
        awaited("greyed data", lambda: stale.count() == 1)
        age = re.compile(r"data are [\d.]+ (s|min) old")
        told = ""

        def is_told() -> bool:
            nonlocal told
            found = age.search(page.locator("body").inner_text())
            told = found[0] if found else ""
            return bool(told)

        awaited("an age", is_told)
        check(TABLE in text_of(page), "the last good data are gone")
        stand.picture(page, "09-gone")
        pause(GONE_SECONDS)
        stand.server("--data", data, "--port", server.endpoint.rpartition(":")[2])
        seconds = within(BACK_SECONDS, "live data after the return", lambda: stale.count() == 0)
        check(document(console)["read_micros"] > read, "the data are not new")
    return told, seconds


# --- 10 --------------------------------------------------------------------------------------------------------------


def large(stand: Stand) -> str:
    """Show 1,000 shards, balanced and in a chain, and 100,000 lease rows as groups."""
    times: dict[str, tuple[float, float]] = {}
    for kind in ("balanced", "chained"):
        server = stand.server()
        make_table(server.client(), TABLE)
        split_all(server, kind)
        parents = parents_of(server)
        closed = {parent for each in parents.values() for parent in each}
        made = [
            Made(shard, f"worker-{number % WORKERS}", parents[shard], is_finished=shard in closed)
            for number, shard in enumerate(parents)
        ]
        make_rows(server, made)
        console, _ = stand.console(server, FLEET_WORD)
        times[kind] = picture_seconds(stand, console, kind), picture_seconds(stand, console, kind)
    more = range(ROWS_OF_GROUPS - len(parents))
    make_rows(server, [Made(f"{number:08x}-made", f"worker-{number % WORKERS}") for number in more])
    console, _ = stand.console(server, FLEET_WORD)
    began = time.monotonic()
    answer = console.ask("GET", f"api/v1/fleets/{TABLE}?detail=groups")
    seconds = time.monotonic() - began
    equal(answer.status, 200, f"the answer ({answer.body[:300]!r})")
    counted = sum(sum(each["counts"]) for each in answer.content["groups"]["workers"])
    pictures = [f"{kind} {first:.2f} s, again {again:.2f} s" for kind, (first, again) in times.items()]
    told = (
        f"first picture of {SHARDS} shards {'; '.join(pictures)}; {counted} shards as groups after {seconds:.1f} s, "
        f"{len(answer.body)} bytes"
    )
    check(max(first for first, _ in times.values()) < PICTURE_SECONDS, f"a first picture came late: {told}")
    check(counted >= len(more), f"groups are incomplete: {told}")
    check(len(answer.body) < MOST_GROUPS_BYTES, f"the answer is large: {told}")
    check(seconds < GROUPS_SECONDS, f"the groups came late: {told}")
    return told


def split_all(server: Server, kind: str) -> None:
    """Split until there are 1,000 open shards: every one in turn, or always the last one, as a growing key does."""
    (first,) = shards_of(server)
    opened = [(first, 0.0, 1.0)]
    for number in range(1, SHARDS):
        shard, low, high = opened.pop(0 if kind == "balanced" else -1)
        middle = (low + high) / 2 if kind == "balanced" else 1 - 1 / (number + 1)
        left, right = server.admin("split", table=TABLE, shard_id=shard, at=[f"{middle:.17f}"])["shard_ids"]
        opened += [(left, low, middle), (right, middle, high)]


def picture_seconds(stand: Stand, console: Console, kind: str) -> float:
    """Return the seconds from the opening of a page to the squares of its shards."""
    began = time.monotonic()
    with stand.page(console, f"fleets/{TABLE}") as page:
        squares = page.locator(".squares .square")
        awaited("the squares", lambda: squares.count() == SHARDS)
        seconds = time.monotonic() - began
        stand.picture(page, f"10-{kind}")
    return seconds


# --- rows that no worker wrote ---------------------------------------------------------------------------------------


@frozen
class Made:
    """A lease as its worker leaves it."""

    shard: str
    owner: str
    parents: Sequence[str] = ()
    is_finished: bool = False


def shards_of(server: Server) -> list[str]:
    return list(parents_of(server))


def parents_of(server: Server) -> dict[str, list[str]]:
    """Return the parents of each shard, as DescribeStream lists them."""
    streams = TablestoreStreamApi(server.client())
    (summary,) = streams.list_stream(TABLE)
    return {each.shard_id: sorted(each.parent_shard_ids) for each in streams.describe_stream(summary.stream_id).shards}


def make_rows(server: Server, leases: Sequence[Made]) -> None:
    """Write the rows of leases, and of the workers that own them; nobody renews them afterwards."""
    client = server.client()
    (summary,) = TablestoreStreamApi(client).list_stream(TABLE)
    LeaseManager(client, STATUS, summary.stream_id).create_lease_table_if_not_exists()
    items = list(_rows(summary.stream_id, leases))
    write(client, STATUS, items)


def _rows(stream_id: str, leases: Sequence[Made]) -> Iterator[PutRowItem]:
    for made in leases:
        checkpoint = "SHARD_END" if made.is_finished else "TRIM_HORIZON"
        cells = [(COUNTER, 1), (OWNER, made.owner), (STEALER, ""), (CHECKPOINT, checkpoint)]
        cells.append((PARENTS, format_parents(made.parents)))
        yield PutRowItem(Row(key_of(stream_id, made.shard), cells), IGNORE)
    for name in sorted({made.owner for made in leases}):
        beats = [(NONCE, "n1"), (BEAT, 1), (STATE, "running"), (WAKE, 0), (INFO, WorkerInfo().to_json())]
        yield PutRowItem(Row(key_of(stream_id, name, WORKER_STATUS_TYPE), beats), IGNORE)


# --- 12 --------------------------------------------------------------------------------------------------------------


def proxied(stand: Stand) -> str:
    """Live for ten minutes below a prefix, behind a proxy that keeps streams back and gives up after a minute."""
    server = fleet_of(stand, "worker-1")
    console, _ = stand.console(server, FLEET_WORD, "--behind-proxy")
    told = []
    for name, target, place in (("server", server.console, f"tables/{TABLE}"), ("fleet", console, f"fleets/{TABLE}")):
        with BufferingProxy(target.base) as proxy:
            behind = Console(f"{proxy.address}{target.printed.removeprefix(target.base)}")
            answers, gap = lives(stand, server, behind, place)
            told.append(f"{name}: {answers} answers, longest gap {gap:.0f} s, {proxy.given_up} streams given up")
    check(answers < 60 * stand.minutes * MOST_ANSWERS_A_SECOND, f"a fleet is asked for without news: {told}")
    return f"{stand.minutes:g} minutes each; {'; '.join(told)}"


def lives(stand: Stand, server: Server, console: Console, place: str) -> tuple[int, float]:
    """Watch a page for the minutes of the step while rows are put; return its answers, and the longest time without."""
    times: list[float] = []
    with stand.page(console, place, complaints=GONE) as page:
        page.on("response", lambda answer: times.append(time.monotonic()) if "have=" in answer.url else None)
        awaited("polling", lambda: "by polling" in page.locator("#live").inner_text(), LONGEST_GAP_SECONDS + 30)
        began = time.monotonic()
        number = 0
        while time.monotonic() - began < 60 * stand.minutes:
            number += 1
            put(server.client(), f"proxied-{number}", number)
            page.wait_for_timeout(1_000 * LOOKS_SECONDS)
            equal(page.locator("body.stale, body.old").count(), 0, f"stale data after {time.monotonic() - began:.0f} s")
            if place.startswith("tables/"):
                check(f"proxied-{number}" in text_of(page), f"row {number} is not shown after {LOOKS_SECONDS:g} s")
    gaps = [later - earlier for earlier, later in zip([began, *times], [*times, time.monotonic()], strict=True)]
    check(max(gaps) < LONGEST_GAP_SECONDS, f"{max(gaps):.0f} s without an answer")
    return len(times), max(gaps)
