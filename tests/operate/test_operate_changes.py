"""Commands that change leases, against real HTTP: what they write, what they refuse, and what they leave behind."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any

import pytest
from operate_scene import STATUS, TABLE, Owner, Scene, closed_family, read_shard, run_cli

from streamclient.cli.options import operator_name
from streamclient.core import leases as rule
from streamclient.model import Pause, PendingCheckpoint
from streamclient.operate.collection import FleetReader
from streamclient.operate.facts import FleetFacts
from streamclient.operate.watching import RowWatcher
from tests.patience import until

OLDEST, END = "TRIM_HORIZON", "SHARD_END"


# --- rewind --------------------------------------------------------------------------------------------------------


def test_a_free_lease_is_rewound_at_once_and_the_audit_says_who_did_it(scene: Scene, shard: str) -> None:
    before = scene.lease()
    ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--reason", "bad hour")

    assert ran.code == 0, ran
    assert (scene.lease().checkpoint, scene.lease().counter) == (OLDEST, before.counter + 1)
    (record,) = scene.audit()
    assert record["who"] == operator_name()
    assert record["command"] == f"rewind {shard} --to oldest"
    assert (record["reason"], record["outcome"], record["shard"]) == ("bad hour", "done", shard)
    assert record["before"] == {"checkpoint": before.checkpoint, "pending": None}
    assert record["after"] == {"checkpoint": OLDEST, "pending": None}
    assert record["change"] in ran.out


def test_a_rewind_by_time_stores_an_iterator_of_that_time(scene: Scene, shard: str) -> None:
    records = scene.streams.get_stream_record(scene.iterator()).records
    moment = datetime.fromtimestamp(records[4].sequence_info.timestamp_micros / 1_000_000, tz=timezone.utc)
    assert scene.run("leases", "rewind", shard, "--to", moment.isoformat()).code == 0
    page = scene.streams.get_stream_record(scene.lease().checkpoint)

    assert page.records in (records[4:], records[3:]), "the moment itself, or one microsecond off"


def test_a_time_before_everything_is_the_beginning_of_the_shard(scene: Scene, shard: str) -> None:
    assert scene.run("leases", "rewind", shard, "--to", "1h-ago").code == 0
    assert scene.lease().checkpoint == OLDEST


def test_a_rewind_to_an_iterator_checks_that_it_is_one_of_the_shard(scene: Scene, shard: str) -> None:
    earlier = scene.iterator(after=2)
    other, _ = scene.split()
    foreign = scene.iterator(other)

    assert "belongs to shard" in scene.run("leases", "rewind", shard, "--to", f"iterator:{foreign}").err
    assert scene.run("leases", "rewind", shard, "--to", "iterator:nonsense").code == 2
    assert scene.audit() == []
    assert scene.run("leases", "rewind", shard, "--to", f"iterator:{earlier}").code == 0
    assert scene.lease(shard).checkpoint == earlier


def test_going_forward_is_no_rewind(scene: Scene, shard: str) -> None:
    ahead = scene.iterator(after=9)
    ran = scene.run("leases", "rewind", shard, "--to", f"iterator:{ahead}")

    assert ran.code == 2
    assert "skips records" in ran.err
    assert "`leases skip`" in scene.run("leases", "rewind", shard, "--to", "latest").err


def test_a_dry_run_writes_nothing_and_says_what_it_would(scene: Scene) -> None:
    parent, first, second = closed_family(scene)
    commands = [
        ("rewind", first, "--to", "oldest"),
        ("rewind", parent, "--to", "oldest", "--with-descendants", "--pause"),
        ("skip", second, "--to", "latest"),
        ("skip", second, "--to", "1h-ago"),
        ("reset", "--to", "oldest"),
        ("release", first),
        ("move", first, "--to", "w1"),
        ("pause", "--all", "--reason", "x"),
        ("resume", "--all"),
    ]
    before = scene.cells()
    for command in commands:
        ran = scene.run("leases", *command, "--dry-run")

        assert "dry run: nothing was written" in ran.out or ran.code == 2, (command, ran)
        assert scene.cells() == before, command
    document = scene.run("leases", "rewind", first, "--to", "oldest", "--dry-run", "--json").document
    assert document["status"] == "planned"
    assert document["changes"][0]["after"]["checkpoint"] == OLDEST
    assert document["change"] is None


def test_a_finished_parent_is_only_rewound_together_with_its_descendants(scene: Scene) -> None:
    parent, first, second = closed_family(scene)
    refused = scene.run("leases", "rewind", parent, "--to", "oldest")
    assert refused.code == 1
    assert "--with-descendants" in refused.out
    assert scene.audit() == []
    ran = scene.run("leases", "rewind", parent, "--to", "oldest", "--with-descendants")

    assert ran.code == 0, ran
    assert [scene.lease(key).checkpoint for key in (parent, first, second)] == [OLDEST] * 3
    assert {record["shard"] for record in scene.audit()} == {parent, first, second}, "one could be begun meanwhile"
    assert len({record["change"] for record in scene.audit()}) == 1


# --- skip ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["latest", "1h-ago"])
@pytest.mark.parametrize("has_iterator", [False, True])
def test_a_shard_without_records_skips_nothing_and_is_sent_nowhere_else(
    scene: Scene, where: str, has_iterator: bool
) -> None:
    scene.put_lease(scene.shard, checkpoint=scene.iterator() if has_iterator else OLDEST)
    ran = scene.run("leases", "skip", scene.shard, "--to", where, "--yes")

    assert (ran.code, ran.err) == (0, ""), ran
    assert ("0 records" if has_iterator else "nothing to change: every position is as asked") in ran.out
    assert scene.lease().checkpoint == OLDEST
    scene.write(1)
    assert len(scene.streams.get_stream_record(scene.iterator()).records) == 1, "which is delivered"


def test_a_time_before_all_records_of_an_unread_shard_changes_nothing(scene: Scene) -> None:
    scene.write(3)
    scene.put_lease(scene.shard)
    for words in (("skip", scene.shard, "--to", "1h-ago"), ("rewind", scene.shard, "--to", "oldest")):
        ran = scene.run("leases", *words)

        assert (ran.code, ran.err) == (0, ""), ran
        assert ran.out.endswith("nothing to change\n"), ran
    assert "3 records" in scene.run("leases", "skip", scene.shard, "--to", "latest").err


# --- wrong times and durations -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("leases pause {shard} --reason x --for 3000000d", "is outside of the years 1 to 9999"),
        ("leases pause {shard} --reason x --for 99999999999999999d", "a duration must be at most 3652058d"),
        ("leases pause {shard} --reason x --wait 2d", "waits for owners for at most 1 d, not 2d"),
        ("leases release {shard} --pause 99999999999999999d", "a duration must be at most 3652058d"),
        ("leases release {shard} --pause 2d", "waits for owners for at most 1 d, not 2d"),
        ("leases rewind {shard} --to 99999999999d-ago", "a duration must be at most 3652058d"),
        ("leases rewind {shard} --to 2000000d-ago", "is outside of the years 1 to 9999"),
        ("leases skip {shard} --to 9999-12-31T23:59:59-12:00", "is outside of the years 1 to 9999"),
        ("leases reset --to 0001-01-01T00:00:00+14:00", "is outside of the years 1 to 9999"),
        ("explain {shard} --observe 1e300", "--observe must be a number of seconds of at least 0, not 1e+300"),
        ("explain {shard} --observe inf", "--observe must be a number of seconds of at least 0, not inf"),
        ("top --interval 1e300", "--interval must be a number of seconds of at least 0.2, not 1e+300"),
        ("top --once --lease-duration inf", "--lease-duration must be a number of seconds above 0, not inf"),
        ("leases list --lease-duration 1e300", "--lease-duration must be a number of seconds above 0, not 1e+300"),
    ],
)
def test_a_time_or_duration_beyond_all_limits_is_one_sentence(scene: Scene, words: str, says: str) -> None:
    shard = read_shard(scene, owner="w1")
    before = scene.cells()
    words = words.format(shard=shard)
    options = ["--endpoint", scene.local.endpoint, "--data-table", TABLE, "--status-table", STATUS]
    ran = run_cli(*words.split(), *options)

    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert says in ran.err
    assert scene.cells() == before


# --- the guard -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_lease_of_a_running_owner_is_left_alone(scene: Scene) -> None:
    """Nothing is written, and no audit row, whichever command asks."""
    shard = read_shard(scene, owner="w1")
    with Owner(scene, "w1", shard):
        checkpoint = scene.lease().checkpoint
        for command in (
            ("rewind", shard, "--to", "oldest"),
            ("skip", shard, "--to", "latest", "--yes"),
            ("reset",),
            ("release", shard),
            ("release", shard, "--force"),
        ):
            ran = scene.run("leases", *command)

            assert ran.code == 1, (command, ran)
            assert "refused: its owner w1 runs" in ran.out
            assert "--pause" in ran.out or "--force" in ran.out
            assert (scene.lease().checkpoint, scene.lease().owner) == (checkpoint, "w1")
    assert scene.audit() == []


@pytest.mark.slow
def test_a_running_owner_without_session_is_not_asked_for_a_pause_it_does_not_know(scene: Scene) -> None:
    shard = read_shard(scene, owner="java-1")
    with Owner(scene, "java-1", shard, has_session=False):
        ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--pause")

    assert ran.code == 1
    assert "does not obey pauses" in ran.out
    assert scene.audit() == []


@pytest.mark.slow
def test_an_owner_that_stands_still_before_our_eyes_is_dead(hasty: Scene) -> None:
    shard = read_shard(hasty, owner="w1", beat=300)
    ran = hasty.run("leases", "rewind", shard, "--to", "oldest")

    assert ran.code == 0, ran
    assert "watching 1 lease for" in ran.err
    assert hasty.lease().checkpoint == OLDEST


@pytest.mark.slow
def test_an_owner_that_wakes_up_while_it_is_watched_is_not_dead(hasty: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stamps are old, but its counter moves while the command watches."""
    shard = read_shard(hasty, owner="w1", beat=300)
    looks: list[FleetFacts] = []

    def renew_late(watcher: RowWatcher, facts: FleetFacts) -> None:
        if not looks:
            hasty.send(rule.renew(hasty.lease()))
        looks.append(facts)

    monkeypatch.setattr(RowWatcher, "_pause", renew_late)

    assert (hasty.run("leases", "rewind", shard, "--to", "oldest").code, len(looks)) == (1, 1)
    assert hasty.lease().checkpoint != OLDEST
    assert hasty.audit() == []


def test_the_verdict_of_the_fleet_needs_no_watching(scene: Scene) -> None:
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w1", state="killed")
    ran = scene.run("leases", "rewind", shard, "--to", "oldest")

    assert (ran.code, ran.err) == (0, "")


# --- pause, change, resume -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_with_pause_the_owner_is_paused_waited_for_and_resumed(scene: Scene) -> None:
    shard = read_shard(scene, owner="w1")
    with Owner(scene, "w1", shard) as owner:
        dry = scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "20s", "--dry-run")
        assert f"worker w1 would first pause {shard}" in dry.out
        assert dry.code == 0
        assert scene.lease().pause is None
        ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "20s")
        assert ran.code == 0, ran
        lease = scene.lease()
        assert (lease.checkpoint, lease.owner, lease.pause, lease.pause_taken) == (OLDEST, "w1", None, "")
        until(lambda: scene.lease().counter > lease.counter + 3, "the owner renews on")
    assert owner.refused <= 1, "the rewind itself refuses at most the write that was under way"
    assert [record["outcome"] for record in scene.audit()] == ["done"]


@pytest.mark.slow
def test_an_owner_that_does_not_stop_in_time_gets_its_shard_back_unchanged(scene: Scene) -> None:
    shard = read_shard(scene, owner="w1")
    with Owner(scene, "w1", shard, obeys=False):
        checkpoint = scene.lease().checkpoint
        ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "1s")

    assert ran.code == 1
    assert f"worker w1 did not stop reading {shard} in time; nothing was changed" in ran.out
    assert (scene.lease().checkpoint, scene.lease().pause) == (checkpoint, None)
    assert scene.audit()[0]["outcome"] == "not changed: not every owner paused in time"


@pytest.mark.slow
@pytest.mark.parametrize("owner", ["", "w2"])
@pytest.mark.parametrize(
    "moment", [(FleetReader, "collect", 2), (FleetReader, "refreshed", 1), (RowWatcher, "await_quiet", 1)]
)
def test_a_lease_that_is_taken_while_the_command_runs_is_changed_with_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, moment: tuple[type, str, int], owner: str
) -> None:
    """It is on its way to w2, or free, when it is looked at, and w2 has it as soon as that is over."""
    parent, first, second = closed_family(scene)
    scene.put_lease(first, "w1", parents=[parent], checkpoint=scene.iterator(first, after=3))
    scene.put_lease(second, owner, stealer=owner, parents=[parent], checkpoint=scene.iterator(second, after=3))
    scene.put_worker("w2")
    looks, look, number = moment
    looked, calls = getattr(looks, look), []

    def look_and_take(*arguments: Any) -> Any:
        seen = looked(*arguments)
        calls.append(seen)
        if len(calls) == number:
            scene.send(rule.take(scene.lease(second), "w2"))
            workers.enter_context(Owner(scene, "w2", second))
        return seen

    monkeypatch.setattr(looks, look, look_and_take)
    with ExitStack() as workers:
        workers.enter_context(Owner(scene, "w1", first))
        ran = scene.run("leases", "rewind", parent, "--to", "oldest", "--with-descendants", "--pause", "600s")
    assert ran.code == 0, ran
    assert {scene.lease(key).checkpoint for key in (parent, first, second)} == {OLDEST}
    assert {scene.lease(key).pause for key in (parent, first, second)} == {None}
    assert [record["outcome"] for record in scene.audit()] == ["done"] * 3


@pytest.mark.slow
def test_an_operators_own_pause_is_kept_when_a_command_ends(scene: Scene) -> None:
    """A pause without end protects the change by itself; one that is about to end is put back afterwards."""
    mine = Pause("r9", "ann@ops", "maintenance")
    shard = read_shard(scene, owner="w1")
    with Owner(scene, "w1", shard):
        scene.send(rule.set_pause(scene.lease(), mine))
        assert scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "20s").code == 0
        assert scene.lease().pause == mine
        soon = Pause("r10", "ann@ops", "short", scene_now(scene) + 30_000_000)
        scene.send(rule.set_pause(scene.lease(), soon))
        assert scene.run("leases", "skip", shard, "--to", "latest", "--yes", "--pause", "20s").code == 0
        assert scene.lease().pause == soon


def scene_now(scene: Scene) -> int:
    now: int = scene.run("leases", "list", "--json", "--no-lag").document["now_micros"]
    return now


@pytest.mark.slow
def test_a_command_that_dies_leaves_its_intent_and_a_pause_that_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process were killed while it waits: nothing is cleaned up, and everything can be seen."""
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w1")
    monkeypatch.setattr("streamclient.operate.operator_orders.OrderExecutor._end_pauses", lambda *_: None)
    monkeypatch.setattr("streamclient.operate.operator_orders.OrderExecutor._complete_audit", lambda *_: ())
    monkeypatch.setattr("streamclient.operate.watching.RowWatcher.await_quiet", _killed)

    assert scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "20s").code == 130
    assert [record["outcome"] for record in scene.audit()] == ["intended"]
    pause = scene.lease().pause
    assert pause is not None
    assert pause.until_micros is not None
    assert "while it is changed: rewind" in pause.reason


def _killed(*_: Any) -> list[str]:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_command_resumes_what_it_paused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w1")
    monkeypatch.setattr("streamclient.operate.watching.RowWatcher.await_quiet", _killed)

    assert scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "20s").code == 130
    assert scene.lease().pause is None
    assert "ended early: KeyboardInterrupt" in scene.audit()[0]["outcome"]


def test_a_dry_run_shows_no_iterator_as_it_is(scene: Scene, shard: str) -> None:
    """Neither the checkpoint nor what a sink has prepared."""
    ahead = scene.iterator(after=8)
    scene.send(rule.prepare(scene.lease(), PendingCheckpoint(ahead, b"t1", 2, 1)))
    ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--dry-run")

    assert "pending={'value': 'iterator " in ran.out
    assert [text for text in (ahead, scene.lease().checkpoint) if text in ran.out] == []


# --- ids on a terminal ------------------------------------------------------------------------------------------------


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is printed is for a person."""
    for module in ("terminal.output", "top_screens"):
        monkeypatch.setattr(f"streamclient.cli.{module}.width_of", lambda stream: 500)


def grandparents(scene: Scene) -> tuple[str, ...]:
    """A family with two more shards, which nobody has a row for, below one of the children."""
    parent, first, second = closed_family(scene)
    return parent, first, second, *scene.split(first)


@pytest.mark.usefixtures("on_a_terminal")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("rewind {parent} --to oldest", "have been read already"),
        ("rewind {first} --to latest", "see `leases skip`"),
        ("rewind {second} --to iterator:{foreign}", "belongs to shard"),
        ("rewind nowhere --to oldest", "known shards"),
        ("skip {first} --to 1h-ago", "is before the checkpoint"),
        ("skip {second} --to latest", "which are never delivered"),
        ("skip {first} --to end --yes", "its children may start"),
        ("reset --to latest", "which are never delivered"),
    ],
)
def test_no_id_is_whole_on_a_terminal(scene: Scene, words: str, says: str) -> None:
    """Not those of shards that a message only mentions either: whatever is known counts."""
    parent, first, second, *children = grandparents(scene)
    names = {"parent": parent, "first": first, "second": second, "foreign": scene.iterator(first)}
    ran = scene.run("leases", *words.format(**names).split())
    told = ran.out + ran.err

    assert says in told
    assert [each for each in (parent, first, second, *children) if each in told] == []


@pytest.mark.usefixtures("on_a_terminal")
def test_a_parent_that_nothing_lists_any_more_is_shortened_too(scene: Scene) -> None:
    scene.write(40)
    parent = scene.shard
    child, _ = scene.split()
    scene.put_lease(child, "w1", parents=["00000000-long-gone"])
    scene.local.advance_clock(60 * 3_600.0)  # the parent's records are past retention
    shown = [scene.run("leases", "list").out, scene.run("top", "--once").out]
    shown.append(run_cli("tables", "describe", TABLE, "--endpoint", scene.local.endpoint).out)

    assert parent not in {shard.shard_id for shard in scene.streams.describe_stream(scene.stream_id).shards}
    assert [each for each in ("00000000-long-gone", parent) if each in "".join(shown)] == []
    assert parent[:8] in shown[-1]
