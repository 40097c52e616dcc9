"""Steps 5 to 8: what ``streamclient console`` tells of a fleet, and what it does to one."""

from __future__ import annotations

import re
import shlex
from typing import Any

from streamclient.base.times import MICROS_PER_SECOND
from tests.console_drill.processors import LAKE, REPLAYED
from tests.console_drill.scenes import (
    PARKING,
    POISON,
    await_owners,
    document,
    fleet_of,
    owners,
    poisoned,
    reshard,
    worker_of,
    workers,
)
from tests.console_drill.stand import (
    FLEET,
    FLEET_WORD,
    LEASE_SECONDS,
    QUICK,
    TABLE,
    Console,
    Server,
    Stand,
    awaited,
    check,
    equal,
    go,
    text_of,
    without_numbers,
)
from tests.console_drill.steps_of_server import put

REASON = "the drill looks"

CLOSE_SECONDS = 30.0
"""The longest time between the reading of the console and that of a command beside it."""

SHOW, DO = "Show the plan", "Carry it out"
"""The two buttons of every order."""

ORDERS = ("pause", "resume", "move", "release", "park")

REFUSED = r"40[39]"
"""What the browser says on its console of a request that is refused on purpose."""


def path_of(*words: str) -> str:
    return "/".join(("fleets", TABLE, *words))


# --- 5 ---------------------------------------------------------------------------------------------------------------


def poison(stand: Stand) -> str:
    """Let one record fail; the verdict names the shard that the others wait for, as ``explain --json`` does."""
    server = fleet_of(stand, "worker-1", "worker-2")
    console, _ = stand.console(server, FLEET_WORD)
    with stand.page(console) as page:
        parent, children = poisoned(stand, server, console)
        told = stand.fleet_command(server, "explain")["verdict"]["troubles"][0]
        trouble = console.get("verdict")["troubles"][0]
        for name in ("kind", "shard", "worker", "situation", "advice", "command", "since_micros", "waiting_shards"):
            equal(trouble[name], told[name], f"the trouble's {name}")
        equal(without_numbers(trouble["first_line"]), without_numbers(told["first_line"]), "why it does not move")
        apart = abs(trouble["seconds_to_loss"] - told["seconds_to_loss"])
        check(apart < CLOSE_SECONDS, f"the times to loss are {apart:.0f} s apart")
        situations = {each["shard"]: each["situation"] for each in document(console, detail="shards")["shards"]}
        equal([situations[child] for child in children], ["waits-for-parent"] * 2, "the situations of the children")
        check(POISON in trouble["first_line"], f"the error is not told: {trouble['first_line']!r}")

        def is_shown() -> bool:
            shown = without_numbers(text_of(page))
            return all(without_numbers(part) in shown for part in (trouble["first_line"], trouble["advice"]))

        awaited("why and advice on the page", is_shown)
        waiting = re.compile(r"shards that wait for them\W+2\b", re.IGNORECASE)
        awaited("the waiting shards on the page", lambda: waiting.search(text_of(page)))
        stand.picture(page, "05-poison")
        go(page, path_of("shards", parent))
        awaited("the shard's own page", lambda: without_numbers(trouble["advice"]) in without_numbers(text_of(page)))
        stand.picture(page, "05-shard")
    return (
        f"root {parent[:8]}, {trouble['situation']}, since {trouble['since_micros']}, 2 children wait, as explain "
        f"--json says; the times to loss are {apart:.1f} s apart"
    )


# --- 6 ---------------------------------------------------------------------------------------------------------------


def silent(stand: Stand) -> str:
    """Freeze a worker; it becomes silent, then dead, and its shards move with their durations."""
    server = fleet_of(stand, "worker-1")
    victim = stand.worker(server, "worker-2", "Checking", *QUICK)
    reshard(server, 4)
    console, _ = stand.console(server, FLEET_WORD)
    with stand.page(console, path_of("moves")) as page:
        await_owners(server, console)
        awaited("an even split", lambda: list(owners(console).values()).count("worker-2") == 2)
        held = [shard for shard, owner in owners(console).items() if owner == "worker-2"]
        began = document(console)["now_micros"]
        victim.freeze()
        lives: list[str] = []

        def is_dead() -> bool:
            life = worker_of(console, "worker-2").get("life", "")
            if life not in lives[-1:]:
                lives.append(life)
            return {owners(console).get(shard) for shard in held} == {"worker-1"}

        seconds = awaited("the shards at the other worker", is_dead)
        moves = [each for each in console.get(path_of("moves"))["moves"] if each["at_micros"] >= began]
        taken = {each["shard"]: each for each in moves if (each["from"], each["to"]) == ("worker-2", "worker-1")}
        check(taken.keys() >= set(held), f"the moves of the frozen worker's shards: {moves}")
        lane = next(each for each in console.get(path_of("moves"))["lanes"] if each["id"] == "worker-2")
        check({each["shard"] for each in lane["spans"]} >= set(held), f"the lane of the frozen worker: {lane}")
        equal({each["kind"] for each in taken.values()}, {"taken"}, "the kind of these moves")
        lengths = [each["seconds"] for each in taken.values()]
        check(all(each is not None for each in lengths), f"the moves have no durations: {moves}")
        longest = max(lengths)
        check(longest <= (document(console)["now_micros"] - began) / MICROS_PER_SECOND + LEASE_SECONDS, f"{longest} s")
        beside = {each["worker"]: each["life"] for each in workers(stand, server)}
        equal(worker_of(console, "worker-2").get("life", "gone"), beside.get("worker-2", "gone"), "the life in top")
        check(len(lives) >= 2, f"the worker went through {lives} only")
        awaited("the moves on the page", lambda: all(shard[:8] in text_of(page) for shard in held))
        stand.picture(page, "06-moves")
        victim.thaw()
    told = ", ".join(filter(None, lives))
    return f"worker-2 was {told}; {len(taken)} shards moved after {seconds:.1f} s, their moves say {longest:.1f} s"


# --- 7 ---------------------------------------------------------------------------------------------------------------


def parked(stand: Stand) -> str:
    """Park a record, look at it, replay it; without a processor the page gives a command that works."""
    lake, replayed = str(stand.directory / "lake"), stand.directory / "replayed.txt"
    options = ("--on-failure", "park", "--retries", "0", "--parking-table", PARKING)
    server = fleet_of(stand, "worker-1", factory="Keeping", options=options, **{LAKE: lake})
    without, _ = stand.console(server, FLEET_WORD, "--parking-table", PARKING, "--allow-actions")
    with stand.page(without, path_of("parked"), complaints=REFUSED) as page:
        park(server, without, "key-3", "key-4")
        (cause,) = without.get(path_of("parked"))["causes"]
        equal((cause["records"], cause["shards"]), (2, 1), "records and shards of the cause")
        awaited("the cause on the page", lambda: "amount must be a number" in text_of(page))
        check(page.get_by_role("button", name=re.compile("^Replay")).first.is_disabled(), "a replay without processor")
        refuses_replay(without, cause["id"])
        command = copied(page, "streamclient parked replay ")
        stand.picture(page, "07-parked")
    words = shlex.split(command.replace("MODULE:NAME", MENDED).replace("MODULE:FACTORY", MENDED))[1:]
    ran = stand.command(server, *words, **{REPLAYED: str(replayed)})
    check(ran.code == 0 and "0 left" in ran.out, f"{command}: {ran.out} {ran.err}")
    equal(without.get(path_of("parked"))["count"], 0, "parked records after the copied command")
    with_one, _ = stand.console(
        server,
        FLEET_WORD,
        *("--parking-table", PARKING, "--processor", MENDED, "--allow-actions"),
        **{REPLAYED: str(replayed)},
    )
    with stand.page(with_one, path_of("parked")) as page:
        park(server, with_one, "key-5", "key-6")
        awaited("the cause on the page", lambda: "amount must be a number" in text_of(page))
        carry_out(page, "Replay", REASON)
        seconds = awaited("no parked record", lambda: with_one.get(path_of("parked"))["count"] == 0)
    keys = sorted(replayed.read_text(encoding="utf-8").split())
    equal(keys, ["key-3", "key-4", "key-5", "key-6"], "the keys of the replayed records")
    proof = stand.command(server, "verify", lake, *FLEET)
    equal(proof.code, 0, f"verify ({proof.out} {proof.err})")
    return (
        f"2 records of 1 cause parked; the copied command replayed them, then the page 2 more within {seconds:.1f} s; "
        f"verify: {proof.out.strip().splitlines()[-1]}"
    )


MENDED = "tests.console_drill.processors:Mended"


def park(server: Server, console: Console, *keys: str) -> None:
    """Put records that are parked for one cause, each before one that is not; wait until they are parked."""
    for number, key in enumerate(keys):
        put(server.client(), key, f"{POISON} {number}")
        put(server.client(), "key-0", number)
    awaited("the parked records", lambda: console.get(path_of("parked"))["count"] == len(keys))


def refuses_replay(console: Console, cause: str) -> None:
    """Require that a replay without a processor is refused with a command in its place."""
    answer = console.ask("POST", f"api/v1/{path_of('parked', 'replay')}", {"cause": cause, "reason": REASON})
    error = answer.content["error"]
    equal((answer.status, error["code"]), (409, "no-processor"), "a replay without a processor")
    check("streamclient parked replay " in error["advice"], f"no command in {error}")


def copied(page: Any, beginning: str) -> str:
    """Return the text that a button of the page copies, by its beginning."""
    buttons = page.locator(f'[data-act="copy"][data-text^="{beginning}"]')
    awaited(f"a button that copies {beginning!r}", lambda: buttons.count() > 0)
    return str(buttons.first.get_attribute("data-text"))


# --- 8 ---------------------------------------------------------------------------------------------------------------


def orders(stand: Stand) -> str:
    """Refuse every change while read-only; pause with a reason; refuse a plan that is not true any more."""
    server = fleet_of(stand, "worker-1", "worker-2")
    reshard(server, 4)
    reader, _ = stand.console(server, FLEET_WORD)
    await_owners(server, reader)
    shards = list(owners(reader))
    changes = [(path_of("actions"), {"command": command, "shards": shards[:1], "reason": REASON}) for command in ORDERS]
    changes += [(path_of("parked", name), {"reason": REASON}) for name in ("replay", "discard")]
    for path, content in changes:
        for plan in ({}, {"plan": "0"}):
            answer = reader.ask("POST", f"api/v1/{path}", {**content, **plan})
            equal((answer.status, answer.content["error"]["code"]), (403, "read-only"), f"POST {path} {content}")
    equal(stand.fleet_command(server, "leases", "audit")["records"], [], "audit rows of a read-only console")
    with stand.page(reader, path_of("shards", shards[0]), complaints=REFUSED) as page:
        button = page.get_by_role("button", name=re.compile("^Pause")).first
        button.wait_for()
        check(button.is_disabled(), "Pause is offered by a read-only console")
    console, _ = stand.console(server, FLEET_WORD, "--allow-actions")
    with stand.page(console, path_of("shards", shards[0])) as page:
        carry_out(page, "Pause", REASON)
        awaited("the pause", lambda: situation_of(console, shards[0]) == "paused")
        stand.picture(page, "08-paused")
    (row,) = stand.fleet_command(server, "leases", "audit")["records"]
    equal((row["command"].split()[0], row["reason"], row["shard"]), ("pause", REASON, shards[0]), "the audit row")
    check(row["who"].endswith(" (console)"), f"the audit row was written by {row['who']!r}")
    code = stale_plan(stand, server, console, shards[1])
    return (
        f"{2 * len(changes)} changes of a read-only console answered 403, no audit row; paused by the page as "
        f"{row['who']}; a plan whose lease moved meanwhile: {code}"
    )


def stale_plan(stand: Stand, server: Server, console: Console, shard: str) -> str:
    """Plan an order, move its lease, confirm the plan; return how it was refused."""
    owner = owners(console)[shard]
    other = next(name for name in ("worker-1", "worker-2") if name != owner)
    order = {"command": "pause", "shards": [shard], "reason": REASON}
    plan = console.post(path_of("actions"), order)
    check(plan["command"].startswith("streamclient leases pause "), f"the command is {plan['command']!r}")
    ran = stand.command(server, "leases", "move", shard, "--to", other, "--reason", REASON, *FLEET)
    equal(ran.code, 0, f"leases move ({ran.err})")
    awaited("the move", lambda: owners(console)[shard] == other)
    before = stand.fleet_command(server, "leases", "audit")["records"]
    answer = console.ask("POST", f"api/v1/{path_of('actions')}", {**order, "plan": plan["plan"]})
    error = answer.content.get("error", {})
    equal((answer.status, error.get("code")), (409, "changed"), "the answer to a plan that is not true any more")
    equal(stand.fleet_command(server, "leases", "audit")["records"], before, "audit rows after the refused plan")
    return f"{answer.status} {error['code']}"


def situation_of(console: Console, shard: str) -> str:
    return next((each["situation"] for each in document(console)["shards"] if each["shard"] == shard), "")


def carry_out(page: Any, name: str, reason: str) -> None:
    """Give an order by the page: a reason, the plan, the confirmation."""
    page.get_by_role("button", name=re.compile(f"^{name}")).first.click()
    page.get_by_label("Reason").first.fill(reason)
    page.get_by_role("button", name=SHOW).click()
    page.get_by_role("button", name=DO).click()
    page.get_by_role("heading", name="Carried out").wait_for()
