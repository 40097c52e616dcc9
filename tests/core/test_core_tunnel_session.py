"""A tunnel client's session: connecting, heartbeats, channels and their readers."""

from __future__ import annotations

import pytest
from tunnel_shell import ERROR, Shell, connected

from streamclient.core.events import Severity
from streamclient.core.tunnel import tunnel_events
from streamclient.core.tunnel.tunnel_events import CallVerdict
from streamclient.core.tunnel.tunnel_session import SessionSettings


def test_first_heartbeat_follows_the_connection_at_once_and_then_every_interval(shell: Shell) -> None:
    shell.answer()
    assert shell.of(tunnel_events.Heartbeat) == []

    assert shell.later(29) == []
    shell.later(1)
    assert shell.of(tunnel_events.Heartbeat)


def test_no_heartbeat_is_sent_while_one_is_under_way(shell: Shell) -> None:
    assert shell.later(60) == []
    shell.answer()
    assert shell.of(tunnel_events.Heartbeat)


def test_open_channel_is_read_from_its_checkpoint() -> None:
    started = connected().read("a OPEN@0")
    assert (started.channel_id, started.token, started.sequence_number) == ("a", "token", 4)


def test_channel_that_shall_be_let_go_is_reported_as_soon_as_its_reader_has_ended(shell: Shell) -> None:
    started = shell.read("a OPEN@0")
    shell.beat("a CLOSING@1")
    assert shell.stops() == [("a", started.reader, False)]
    assert shell.of(tunnel_events.Heartbeat) == []
    shell.end(started, after=1)

    assert shell.reported() == ["a CLOSE@2"]


def test_finished_channel_is_reported_as_terminated_at_once(shell: Shell) -> None:
    started = shell.read("a OPEN@0")
    shell.end(started, is_finished=True, after=1)

    assert shell.reported() == ["a TERMINATED@1"]
    assert shell.answer() == []
    assert shell.session.channels == {}


def test_channel_that_is_leased_again_is_read_by_a_new_reader(shell: Shell) -> None:
    first = shell.read("a OPEN@0")
    shell.end(first, after=1)
    assert shell.reported() == ["a CLOSE@1"]

    assert shell.read("a OPEN@2").reader != first.reader


def test_channel_that_is_missing_in_the_answer_is_dropped_without_report(shell: Shell) -> None:
    started = shell.read("a OPEN@0")
    shell.beat()

    assert shell.stops() == [("a", started.reader, True)]
    shell.end(started, after=1)
    assert shell.reported() == []
    assert shell.session.channels == {}


def test_channel_has_one_reader_at_a_time_even_if_it_comes_back_at_once(shell: Shell) -> None:
    first = shell.read("a OPEN@0")
    shell.beat()
    shell.beat("a OPEN@5")
    assert shell.of(tunnel_events.FindCheckpoint) == []
    shell.end(first)

    assert [lookup.channel_id for lookup in shell.of(tunnel_events.FindCheckpoint)] == ["a"]


def test_channel_that_waits_for_an_old_reader_is_let_go_without_it(shell: Shell) -> None:
    shell.read("a OPEN@0")
    shell.beat()
    shell.beat("a OPEN@5")
    shell.beat("a CLOSING@6")

    shell.later(1)
    assert shell.reported() == ["a CLOSE@7"]


def test_channel_whose_checkpoint_cannot_be_found_is_let_go(shell: Shell) -> None:
    shell.answer("a OPEN@0")
    lookup = shell.lookup()
    shell.now += 1
    shell.handle(tunnel_events.CheckpointNotFound("a", lookup.reader, ERROR))

    assert shell.reported() == ["a CLOSE@1"]


def test_channel_asked_back_during_the_lookup_is_never_read(shell: Shell) -> None:
    shell.answer("a OPEN@0")
    lookup = shell.lookup()
    shell.beat("a CLOSING@1")
    shell.handle(tunnel_events.CheckpointFound("a", lookup.reader, "token", 0))

    assert shell.of(tunnel_events.StartReader) == []
    shell.later(1)
    assert shell.reported() == ["a CLOSE@2"]


@pytest.mark.parametrize("is_session_lost", [True, False])
def test_lookup_for_an_earlier_connection_starts_no_reader(shell: Shell, is_session_lost: bool) -> None:
    """Another client may have read the channel since then, and the present connection could not stop that reader."""
    shell.answer("a OPEN@0")
    earlier, client_id = shell.lookup(), "me"
    if is_session_lost:
        client_id = "me again"
        shell.handle(tunnel_events.HeartbeatFailed("me", CallVerdict.GONE, ERROR))
        shell.handle(tunnel_events.Connected(client_id, shell.now))
    else:
        shell.beat()
        shell.later(30)
    shell.answer("a OPEN@5", client_id=client_id)
    shell.handle(tunnel_events.CheckpointFound("a", earlier.reader, "old", 4))

    assert shell.of(tunnel_events.StartReader) == []
    lookup = shell.lookup()
    shell.handle(tunnel_events.CheckpointFound("a", lookup.reader, "token", 7))
    (started,) = shell.of(tunnel_events.StartReader)
    assert (started.client_id, started.token) == (client_id, "token")
    shell.later(30)
    shell.answer(client_id=client_id)
    assert shell.stops() == [("a", lookup.reader, True)]


def test_lookup_is_wanted_until_its_channel_or_session_is_given_up(shell: Shell) -> None:
    shell.answer("a OPEN@0", "b OPEN@0", "c OPEN@0")
    lookups = shell.of(tunnel_events.FindCheckpoint)
    assert [shell.session.wants(lookup) for lookup in lookups] == [True, True, True]
    shell.beat("a CLOSING@1", "c OPEN@0")
    assert [shell.session.wants(lookup) for lookup in lookups] == [False, False, True]
    shell.handle(tunnel_events.HeartbeatFailed("me", CallVerdict.GONE, ERROR))
    shell.handle(tunnel_events.Connected("me again", shell.now))
    shell.answer("c OPEN@1", client_id="me again")
    assert not shell.session.wants(lookups[2])
    assert shell.of(tunnel_events.FindCheckpoint) == []

    shell.handle(tunnel_events.ChannelDeclined("c", lookups[2].reader))
    assert shell.session.wants(shell.lookup())
    shell.handle(tunnel_events.SessionStopRequested())
    assert not any(shell.session.wants(lookup) for lookup in lookups)


def test_reader_that_does_not_end_is_dropped_after_three_heartbeats(shell: Shell) -> None:
    started = shell.read("a OPEN@0")
    for _ in range(2):
        shell.beat("a CLOSING@1")
    assert not [stop for stop in shell.of(tunnel_events.StopReader) if stop.is_lost]
    shell.beat("a CLOSING@1")

    assert tunnel_events.StopReader("a", started.reader, is_lost=True) in shell.commands
    shell.later(1)
    assert shell.reported() == ["a CLOSE@2"]


def test_without_detection_a_reader_may_take_its_time() -> None:
    shell = connected(SessionSettings(heartbeat_interval=30.0, heartbeat_timeout=300.0, detects_closing=False))
    shell.read("a OPEN@0")
    for _ in range(6):
        shell.beat("a CLOSING@1")

    assert not [stop for stop in shell.of(tunnel_events.StopReader) if stop.is_lost]


def test_stalled_reader_gives_its_channel_up(shell: Shell) -> None:
    started = shell.read("a OPEN@0")
    shell.now += 1
    shell.handle(tunnel_events.ReaderStalled("a", started.reader, "it hangs"))

    assert shell.stops() == [("a", started.reader, True)]
    assert shell.reported() == ["a CLOSE@1"]


def test_session_that_the_service_ended_is_begun_anew_at_once(shell: Shell) -> None:
    started = shell.read("a OPEN@0")
    shell.later(30)
    shell.handle(tunnel_events.HeartbeatFailed("me", CallVerdict.GONE, ERROR))

    assert shell.stops() == [("a", started.reader, True)]
    assert shell.of(tunnel_events.Connect)
    shell.handle(tunnel_events.Connected("me again", shell.now))
    assert shell.of(tunnel_events.Heartbeat) == [tunnel_events.Heartbeat("me again", ())]


def test_session_without_answered_heartbeats_ends_before_the_service_ends_it(shell: Shell) -> None:
    shell.answer()
    for _ in range(9):
        shell.later(30)
        shell.handle(tunnel_events.HeartbeatFailed("me", CallVerdict.PASSING, ERROR))
    assert shell.session.client_id == "me"
    shell.later(16)

    assert shell.session.client_id == ""
    assert shell.of(tunnel_events.Connect)


def test_answer_counts_from_when_the_heartbeat_was_sent(shell: Shell) -> None:
    sent_at = shell.now
    shell.now += 100
    shell.handle(tunnel_events.HeartbeatAnswered("me", [], sent_at))

    assert shell.session.client_id == "me"
    shell.now = sent_at + 286
    shell.handle(tunnel_events.SessionTick())
    assert shell.session.client_id == ""


def test_answer_to_a_heartbeat_of_an_old_session_is_ignored(shell: Shell) -> None:
    shell.handle(tunnel_events.HeartbeatFailed("me", CallVerdict.GONE, ERROR))
    shell.handle(tunnel_events.Connected("new", shell.now))
    shell.answer("a OPEN@0", client_id="me")

    assert shell.session.channels == {}


def test_failed_connections_are_repeated_for_ever_with_growing_pauses() -> None:
    shell = Shell()
    shell.handle(tunnel_events.SessionTick())
    pauses = []
    for _ in range(12):
        shell.handle(tunnel_events.ConnectFailed(CallVerdict.PASSING, ERROR))
        deadline = shell.session.next_deadline()
        assert deadline is not None
        pauses.append(deadline - shell.now)
        shell.later(pauses[-1])
        assert shell.of(tunnel_events.Connect)
    assert pauses[0] <= 0.2
    assert 7.5 <= pauses[-1] <= 10


def test_hopeless_error_ends_the_work_and_names_itself() -> None:
    shell = Shell()
    shell.handle(tunnel_events.SessionTick())
    shell.handle(tunnel_events.ConnectFailed(CallVerdict.FINAL, ERROR))

    assert shell.of(tunnel_events.Finish) == [tunnel_events.Finish(ERROR)]


@pytest.mark.parametrize(
    "refusal",
    [
        tunnel_events.HeartbeatFailed("me", CallVerdict.FINAL, ERROR),
        tunnel_events.CallsRefused("checkpoints cannot be stored", ERROR),
    ],
)
def test_hopeless_call_waits_for_the_readers_to_end_and_ends_the_session(
    shell: Shell, refusal: tunnel_events.Event
) -> None:
    started = shell.read("a OPEN@0")
    shell.later(30)
    shell.handle(refusal)
    assert shell.stops() == [("a", started.reader, True)]
    assert shell.of(tunnel_events.EndSession) == []
    shell.end(started)
    assert shell.of(tunnel_events.EndSession) == [tunnel_events.EndSession("me")]
    shell.handle(tunnel_events.SessionEnded())

    assert shell.of(tunnel_events.Finish) == [tunnel_events.Finish(ERROR)]


def test_checkpoint_that_never_can_be_looked_up_ends_the_work_which_is_told_once(shell: Shell) -> None:
    shell.answer("a OPEN@0", "b OPEN@0")
    told: list[Severity] = []
    for lookup in shell.of(tunnel_events.FindCheckpoint):
        shell.handle(tunnel_events.CheckpointNotFound(lookup.channel_id, lookup.reader, ERROR, CallVerdict.FINAL))
        told += [report.severity for report in shell.of(tunnel_events.SessionReport)]
    shell.handle(tunnel_events.SessionEnded())

    assert told.count(Severity.ERROR) == 1
    assert shell.of(tunnel_events.Finish) == [tunnel_events.Finish(ERROR)]


def test_failures_of_one_call_are_one_outage_until_another_error_comes() -> None:
    shell, outages = Shell(), []
    shell.handle(tunnel_events.SessionTick())
    for error in (ERROR, ERROR, KeyError("other")):
        shell.handle(tunnel_events.ConnectFailed(CallVerdict.PASSING, error))
        outages += [report.outage for report in shell.of(tunnel_events.SessionReport)]
        shell.later(10)

    assert outages[0] == outages[1] != outages[2]
    assert () not in outages


def test_stop_lets_readers_store_their_last_checkpoints_and_then_ends_the_session(shell: Shell) -> None:
    started = shell.read("a OPEN@0")
    shell.handle(tunnel_events.SessionStopRequested())
    assert shell.stops() == [("a", started.reader, False)]
    shell.end(started)
    assert shell.of(tunnel_events.EndSession) == [tunnel_events.EndSession("me")]
    shell.handle(tunnel_events.SessionEnded())

    assert shell.of(tunnel_events.Finish) == [tunnel_events.Finish(None)]


def test_stop_during_the_lookup_of_a_checkpoint_starts_no_reader(shell: Shell) -> None:
    """It would never be told to stop, and the session never end."""
    shell.answer("a OPEN@0")
    lookup = shell.lookup()
    shell.handle(tunnel_events.SessionStopRequested())
    assert not shell.of(tunnel_events.EndSession)
    shell.handle(tunnel_events.CheckpointFound("a", lookup.reader, "token", 0))

    assert shell.of(tunnel_events.StartReader) == []
    assert shell.of(tunnel_events.EndSession) == [tunnel_events.EndSession("me")]


def test_session_is_kept_alive_while_readers_end(shell: Shell) -> None:
    shell.read("a OPEN@0")
    shell.handle(tunnel_events.SessionStopRequested())
    shell.later(30)

    assert shell.reported() == ["a OPEN@0"]


def test_stop_while_connecting_ends_the_session_that_comes_of_it() -> None:
    shell = Shell()
    shell.handle(tunnel_events.SessionTick())
    shell.handle(tunnel_events.SessionStopRequested())
    shell.handle(tunnel_events.Connected("me", shell.now))

    assert shell.of(tunnel_events.EndSession) == [tunnel_events.EndSession("me")]


def test_channels_that_end_together_are_reported_together(shell: Shell) -> None:
    shell.answer("a OPEN@0", "b OPEN@0")
    lookups = shell.of(tunnel_events.FindCheckpoint)
    readers = []
    for lookup in lookups:
        shell.handle(tunnel_events.CheckpointFound(lookup.channel_id, lookup.reader, "t", 0))
        readers += shell.of(tunnel_events.StartReader)
    shell.end(readers[0], is_finished=True)
    assert shell.of(tunnel_events.Heartbeat) == []
    shell.end(readers[1], is_finished=True)
    shell.later(0.2)

    assert shell.reported() == ["a TERMINATED@1", "b TERMINATED@1"]


def test_nothing_is_due_while_the_session_is_being_ended(shell: Shell) -> None:
    """Otherwise a deadline in the past would keep the owner thread busy until the answer comes."""
    shell.handle(tunnel_events.SessionStopRequested())
    assert shell.of(tunnel_events.EndSession)

    shell.now += 1_000
    assert shell.session.next_deadline() is None
    shell.handle(tunnel_events.SessionEnded())
    assert shell.session.next_deadline() is None
