"""Steps 1 to 4: the console of ``streamclient server``."""

from __future__ import annotations

import re
import time
from statistics import median
from typing import Any

from tablestore import Condition, Row, RowExistenceExpectation
from tablestore.retry import NoRetryPolicy

from streamclient.server import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET
from streamclient.tablestore import TablestoreStreamApi
from tests.console_drill.stand import (
    INSTANCE,
    TABLE,
    NotSeen,
    Server,
    Stand,
    awaited,
    check,
    equal,
    go,
    text_of,
    within,
)
from tests.interop.client_process import ClientUnavailable, build_with_maven
from tests.stage import make_table

SOON_SECONDS = 1.0
"""The time within which a page shows what happened."""

ROWS = 1_000

LATER_SHARE, LATER_SECONDS = 1.2, 0.05
"""A first line counts as later if it needs this many times as long, and this much longer, with the console."""

IGNORE = Condition(RowExistenceExpectation.IGNORE)

THROTTLE = "OTSFlowControl"


def put(client: Any, key: str, amount: object, table: str = TABLE) -> None:
    client.put_row(table, Row([("id", key)], [("amount", amount)]), IGNORE)


# --- 1 ---------------------------------------------------------------------------------------------------------------


def newcomer(stand: Stand) -> str:
    """Start a server; make a table and put a row by keyboard; read it with an SDK."""
    with_page, without = first_lines(stand)
    allowed = LATER_SHARE * without + LATER_SECONDS
    check(with_page <= allowed, f"the first line came after {with_page:.3f} s, without a console after {without:.3f} s")
    server = stand.server()
    with stand.page(server.console) as page:
        tab_to(page, "Make a table")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="New table").wait_for()
        tab_to(page, "Name")
        page.keyboard.type("visits")
        tab_to(page, "Key column")
        page.keyboard.type("id")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Table visits").wait_for()
        tab_to(page, re.escape("id (STRING)"))
        page.keyboard.type("a")
        for label, text in (("Column", "n"), ("Type", "INTEGER"), ("Value", str(2**63 - 1))):
            tab_to(page, label)
            page.keyboard.type(text)
        page.keyboard.press("Enter")
        arrived = page.locator("#arrived")
        awaited("the change in the list", lambda: "arrived after" in arrived.inner_text())
        millis = int(arrived.inner_text().removeprefix("arrived after ").removesuffix(" ms"))
        check(millis < 1_000 * SOON_SECONDS, f"the change was listed after {millis} ms")
    _, row, _ = server.client().get_row("visits", [("id", "a")])
    equal([cell[:2] for cell in row.attribute_columns], [("n", 2**63 - 1)], "the row that the SDK reads")
    return (
        f"first line after {with_page:.3f} s, {without:.3f} s with --no-console (medians of {stand.starts}); "
        f"a table and a row by keyboard; the change is listed after {millis} ms; the SDK reads it"
    )


def first_lines(stand: Stand) -> tuple[float, float]:
    """Return the median times to the first line, with the console and without, of servers started by turns."""
    with_page, without = [], []
    for _ in range(stand.starts):
        for found, options in ((with_page, ()), (without, ("--no-console",))):
            server = stand.server(*options, console=not options)
            found.append(server.first_line_seconds)
            equal(stand.end(server.process), 0, "the exit code of a server")
    return median(with_page), median(without)


def tab_to(page: Any, name: str, longest: int = 120) -> int:
    """Press Tab until the focus is on what has a name of this pattern; return the number of presses.

    The name is the text of a label, else the thing's own.
    """
    for pressed in range(1, longest + 1):
        page.keyboard.press("Tab")
        if re.fullmatch(name, page.evaluate(FOCUSED)):
            return pressed
    raise NotSeen(f"Tab does not lead to {name!r}")


FOCUSED = """() => {
  const node = document.activeElement;
  const label = node.labels && node.labels[0];
  const text = label ? label.firstChild.textContent : node.getAttribute("aria-label") || node.textContent;
  return text.trim();
}"""
"""The name of what has the focus."""


# --- 2 ---------------------------------------------------------------------------------------------------------------


def two_sdks(stand: Stand) -> str:
    """Put 1,000 rows from each of two languages; see dots, counters, and the callers told apart."""
    server = stand.server()
    make_table(server.client(), TABLE)
    with stand.page(server.console, "requests") as page, stand.page(server.console, f"stream/{TABLE}") as stream:
        began = time.monotonic()
        python = server.client("python-sdk")
        for number in range(ROWS):
            put(python, f"python-{number}", number)
        python_seconds = time.monotonic() - began
        awaited("Python's requests", lambda: "python-sdk" in text_of(page))
        java = put_from_java(stand, server)
        for number in range(10):  # the newest 500 requests have both callers then
            put(python, f"later-{number}", number)
        wanted = ROWS + 10 + (0 if java else ROWS)
        awaited("the counters", lambda: counted(server) == wanted)
        heads = server.console.get("server/requests")["heads"]
        callers = {each["caller"] for each in heads if each["operation"] == "PutRow"}
        equal(callers, {"python-sdk"} if java else {"python-sdk", "java-sdk"}, "the callers among the newest requests")
        for caller in callers:
            awaited(f"{caller} on the page", lambda caller=caller: caller in text_of(page))
        shown = [cell.replace("\u202f", "") for cell in page.get_by_role("cell").all_inner_texts()]
        check(str(wanted) in shown, f"the page does not show the {wanted} requests")
        changes = len(server.console.get(f"server/tables/{TABLE}/changes")["changes"])
        dots = stream.locator(".layer-dots circle")
        awaited("the dots", lambda: dots.count() == changes)
        stand.picture(stream, "02-stream")
    told = java or f"java-sdk put {ROWS} rows"
    return (
        f"python-sdk put {ROWS} rows in {python_seconds:.1f} s; {told}; counter {wanted}, {changes} dots, callers of "
        f"the newest {len(heads)} requests: {', '.join(sorted(callers))}"
    )


def counted(server: Server) -> int:
    counts = server.console.get("server/requests")["counts"]
    return sum(int(each["requests"]) for each in counts if each["operation"] == "PutRow")


def put_from_java(stand: Stand, server: Server) -> str:
    """Put rows by the SDK for Java; return why it is out of reach, or an empty text."""
    try:
        class_path = build_with_maven("java", stand.directory)
    except ClientUnavailable as reason:
        return f"NOT SEEN: the SDK for Java is out of reach ({str(reason).splitlines()[0]})"
    settings = {
        "endpoint": server.endpoint,
        "accessKeyId": DEFAULT_ACCESS_KEY_ID,
        "accessKeySecret": DEFAULT_ACCESS_KEY_SECRET,
        "instance": INSTANCE,
        "token": "java-sdk",
        "table": TABLE,
        "rows": ROWS,
    }
    words = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", class_path]
    ran = stand.java([*words, *(f"-D{name}={value}" for name, value in settings.items()), "interop.JavaWriter"])
    equal((ran.code, ran.out.strip()), (0, str(ROWS)), f"what the writer in Java printed ({ran.err[-500:]})")
    return ""


# --- 3 ---------------------------------------------------------------------------------------------------------------


def reshards(stand: Stand) -> str:
    """Split and merge by the page and by commands; the river follows, and DescribeStream agrees."""
    server = stand.server()
    client = server.client()
    make_table(client, TABLE)
    for number in range(40):
        put(client, f"key-{number:02}", number)
    times: dict[str, float] = {}
    with stand.page(server.console, f"stream/{TABLE}") as page:
        bands = page.locator(".river .layer-bands rect")
        awaited("the first band", lambda: bands.count() == 1)
        choose(page, open_shards(server)[0])
        page.get_by_role("button", name="Split at its median").click()
        times["split by the page"] = within(SOON_SECONDS, "bands after a split by the page", lambda: bands.count() == 3)
        choose(page, open_shards(server)[0])
        page.get_by_role("button", name="Merge with the next one").click()
        times["merge by the page"] = within(SOON_SECONDS, "bands after a merge by the page", lambda: bands.count() == 4)
        for count, (action, more) in ((6, ("split", 0)), (7, ("merge", 2))):
            ran = stand.command(server, "control", action, TABLE, *open_shards(server)[:more])
            equal(ran.code, 0, f"control {action} ({ran.err})")
            name = f"control {action}"
            times[name] = within(SOON_SECONDS, name, lambda count=count: bands.count() == count)
        names = {text.strip() for text in page.get_by_role("table").get_by_role("button").all_inner_texts()}
        stand.picture(page, "03-stream")
    streams = TablestoreStreamApi(client)
    (summary,) = streams.list_stream(TABLE)
    described = {shard.shard_id for shard in streams.describe_stream(summary.stream_id).shards}
    check({shard[:8] for shard in described} <= names, f"the page has not all of {sorted(described)}")
    story = server.console.get(f"server/tables/{TABLE}/story")
    equal({band["shard"] for band in story["bands"]}, described, "the shards of the river")
    told = ", ".join(f"{name} {1_000 * seconds:.0f} ms" for name, seconds in times.items())
    return f"{told}; {len(described)} shards, as DescribeStream lists them"


def choose(page: Any, shard: str) -> None:
    page.get_by_role("table").get_by_role("button", name=shard[:8]).first.click()


def open_shards(server: Server) -> list[str]:
    bands = server.console.get(f"server/tables/{TABLE}/story")["bands"]
    opened = [band for band in bands if band["closed_micros"] is None]
    return [band["shard"] for band in sorted(opened, key=lambda band: band["low"])]


# --- 4 ---------------------------------------------------------------------------------------------------------------


def throttled(stand: Stand) -> str:
    """Add the fault Throttle; Overview tells it; remove it; the last trouble is told."""
    server = stand.server()
    make_table(server.client(), TABLE)
    with stand.page(server.console, "faults") as page:
        page.get_by_role("button", name="Throttle", exact=True).click()
        go(page, "")
        heading = page.locator("#page h1")
        told = within(SOON_SECONDS, "the trouble", lambda: heading.inner_text().startswith("A fault is active"))
        verdict = server.console.get("verdict")
        (trouble,) = verdict["troubles"]
        check(THROTTLE in trouble["first_line"], f"the trouble is {trouble['first_line']!r}")
        shown = text_of(page)
        for part in (trouble["first_line"], trouble["advice"]):
            check(" ".join(part.split()) in shown, f"the page does not show {part!r}")
        client = server.client(retry_policy=NoRetryPolicy())
        struck = sum(_is_refused(client) for _ in range(6))
        check(struck > 0, "no request was throttled")
        stand.picture(page, "04-throttled")
        page.get_by_role("button", name="Remove this fault").click()
        over = within(SOON_SECONDS, "all is well", lambda: heading.inner_text().startswith("All is well"))
        last = server.console.get("verdict")["last_trouble"]
        equal((last["first_line"], last["since_micros"]), (trouble["first_line"], trouble["since_micros"]), "the last")
        check(last["first_line"] in text_of(page), "the page does not tell the last trouble")
        equal(sum(_is_refused(client) for _ in range(6)), 0, "requests refused after the fault")
    times = f"told after {1_000 * told:.0f} ms, well {1_000 * over:.0f} ms after its removal"
    return f"{times}; {struck} of 6 requests struck, none afterwards; the last trouble is this one"


def _is_refused(client: Any) -> bool:
    try:
        client.describe_table(TABLE)
    except Exception as error:
        check(THROTTLE in str(error), f"a request failed otherwise: {error}")
        return True
    return False
