"""The port of the worker over the package's managers and over a user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve

from streamclient.core import leases as rule
from streamclient.core.write_rules import WriteOutcome
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, StreamClientException
from streamclient.interfaces import ILeaseManager
from streamclient.model import Lease, Pause, PendingCheckpoint, Progress
from streamclient.worker.lease import MemoryLeaseManager, WriteAnswer, as_lease_store

LEASE = Lease("s1", "stream", owner="a", counter=7)
ACCEPTED = WriteAnswer(WriteOutcome.ACCEPTED)
REFUSED = WriteAnswer(WriteOutcome.REFUSED)


def delegated(verb: str) -> Callable[..., Any]:
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if self.fails is not None and verb in ("renew_lease", "take_lease"):
            raise self.fails
        return getattr(self._inner, verb)(*given, **named)

    return call


Verbs = type("Verbs", (ILeaseManager,), {verb: delegated(verb) for verb in ILeaseManager.__abstractmethods__})


class VerbsOnly(Verbs):  # type: ignore[misc,valid-type]
    """A user's manager: the verbs that it has to have, and nothing else."""

    def __init__(self, stream_id: str | None = None) -> None:
        self._inner = MemoryLeaseManager(stream_id)
        self.fails: Exception | None = None


def test_a_manager_that_writes_many_is_the_store_itself() -> None:
    manager = MemoryLeaseManager()
    assert as_lease_store(manager) is manager


@pytest.mark.parametrize("make", [MemoryLeaseManager, VerbsOnly])
def test_every_kind_of_write_has_its_effect(make: type[MemoryLeaseManager | VerbsOnly]) -> None:
    store = as_lease_store(make("stream"))
    steps = [
        rule.create(LEASE),
        rule.renew(LEASE),
        rule.steal(evolve(LEASE, counter=8), "b"),
        rule.checkpoint(evolve(LEASE, counter=8, stealer="b"), "x"),
        rule.transfer(evolve(LEASE, counter=9, stealer="b", checkpoint="x"), "b"),
        rule.take(evolve(LEASE, owner="b", counter=10, stealer="b", checkpoint="x"), "b"),
        rule.take(evolve(LEASE, owner="b", counter=11, checkpoint="x"), "c", checkpoint="y"),
    ]
    for write in steps:
        assert list(store.write_many([write])) == [ACCEPTED]
        assert store.get_lease("s1") == write.result
    last = rule.delete(evolve(LEASE, owner="c", counter=12, checkpoint="y"))

    assert list(store.write_many([last, steps[1]])) == [ACCEPTED, REFUSED]
    assert list(store.list_leases()) == []


@pytest.mark.parametrize("make", [MemoryLeaseManager, VerbsOnly])
def test_answers_come_in_the_order_of_the_writes(make: type[MemoryLeaseManager | VerbsOnly]) -> None:
    """Renewals go out together, and their answers return to their places."""
    store = as_lease_store(make("stream"))
    other = evolve(LEASE, lease_key="s2")
    store.write_many([rule.create(LEASE), rule.create(other)])
    stale = evolve(other, counter=1)
    answers = store.write_many([rule.create(LEASE), rule.renew(LEASE), rule.take(stale, "b"), rule.renew(other)])

    assert list(answers) == [REFUSED, ACCEPTED, REFUSED, ACCEPTED]


class Preparing(VerbsOnly):
    """A user's manager with the verbs of two-phase checkpoints and epochs."""

    def prepare_lease(self, lease: Lease, pending: PendingCheckpoint) -> bool:
        return self._inner.prepare_lease(lease, pending)

    def draw_epoch(self, lease_key: str) -> int:
        return self._inner.draw_epoch(lease_key)

    def forget_epoch(self, lease_key: str) -> None:
        if self.fails is not None:
            raise self.fails
        self._inner.forget_epoch(lease_key)


def test_a_manager_that_prepares_checkpoints_needs_one_verb_for_it() -> None:
    pending = PendingCheckpoint("next", b"tx", 3, 1)
    store = as_lease_store(Preparing("stream"))
    store.write_many([rule.create(LEASE)])

    assert list(store.write_many([rule.prepare(LEASE, pending)])) == [ACCEPTED]
    assert store.get_lease("s1") == evolve(LEASE, counter=8, pending=pending)


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (rule.prepare(LEASE, PendingCheckpoint("next", b"", 3, 1)), "VerbsOnly stores no pending checkpoints"),
        (rule.take_pause(evolve(LEASE, pause=Pause("r", "ann", ""))), "VerbsOnly has no method for 'take pause'"),
    ],
)
def test_what_a_manager_has_no_verb_for_is_answered_by_a_configuration_error(
    write: rule.LeaseWrite, named: str
) -> None:
    (answer,) = as_lease_store(VerbsOnly("stream")).write_many([write])

    assert answer.outcome is WriteOutcome.UNCERTAIN
    assert isinstance(answer.error, ConfigurationError)
    assert named in str(answer.error)


def test_epochs_come_one_by_one_from_a_manager_with_verbs_alone() -> None:
    store = as_lease_store(Preparing("stream"))

    assert list(store.draw_epochs(["s1", "s2"])) == [1, 1]
    assert list(store.draw_epochs(["s1"])) == [2]
    store.forget_epochs(["s1"])
    assert list(store.draw_epochs(["s1", "s2"])) == [1, 2]


def test_epochs_of_a_manager_without_any_are_counters_of_its_rows() -> None:
    store = as_lease_store(VerbsOnly("stream"))
    store.write_many([rule.create(LEASE)])
    known, unknown = store.draw_epochs(["s1", "s2"])

    assert known == 7
    assert isinstance(unknown, StreamClientException)
    store.forget_epochs(["s1"])


@pytest.mark.parametrize("epoch", [None, True, 0, -1, "1"])
def test_only_a_number_above_zero_is_an_epoch(epoch: object, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Preparing("stream")
    monkeypatch.setattr(manager, "draw_epoch", lambda key: epoch)
    (answer,) = as_lease_store(manager).draw_epochs(["s1"])

    assert isinstance(answer, StreamClientException)
    assert repr(epoch) in str(answer)


def test_an_epoch_that_cannot_be_forgotten_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    manager = Preparing("stream")
    manager.fails = DependencyException("cut")
    as_lease_store(manager).forget_epochs(["s1"])

    assert "the epoch of shard s1, which has left the stream, was not deleted: cut" in caplog.text


def test_an_exception_of_a_verb_is_an_uncertain_answer() -> None:
    manager = VerbsOnly("stream")
    manager.create_lease(LEASE)
    manager.fails = DependencyException("cut", kind=ErrorKind.AMBIGUOUS)
    answers = as_lease_store(manager).write_many([rule.renew(LEASE), rule.take(LEASE, "b")])

    assert list(answers) == [WriteAnswer(WriteOutcome.UNCERTAIN, manager.fails)] * 2


class Sloppy(VerbsOnly):
    """Breaks the interface in the usual ways."""

    def renew_leases(self, leases: Sequence[Lease]) -> Sequence[bool | Exception]:
        return [True]

    def delete_lease(self, lease: Lease) -> bool:
        return None  # type: ignore[return-value]


def test_a_verb_without_a_boolean_is_no_refusal() -> None:
    (answer,) = as_lease_store(Sloppy("stream")).write_many([rule.delete(LEASE)])

    assert answer.outcome is WriteOutcome.UNCERTAIN
    assert isinstance(answer.error, StreamClientException)
    assert "None" in str(answer.error)


def test_a_missing_answer_to_renewals_makes_all_of_them_uncertain() -> None:
    answers = as_lease_store(Sloppy("stream")).write_many([rule.renew(LEASE), rule.renew(evolve(LEASE, lease_key="x"))])
    assert [answer.outcome for answer in answers] == [WriteOutcome.UNCERTAIN] * 2
    assert "1 answer for 2 leases" in str(answers[0].error)


def test_renew_leases_that_raises_makes_all_renewals_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = VerbsOnly("stream")
    error = OSError("unplugged")

    def fail(leases: Sequence[Lease]) -> Sequence[bool | Exception]:
        raise error

    monkeypatch.setattr(manager, "renew_leases", fail)

    answers = as_lease_store(manager).write_many([rule.renew(LEASE)])

    assert list(answers) == [WriteAnswer(WriteOutcome.UNCERTAIN, error)]


def test_a_memory_manager_without_stream_adopts_the_first() -> None:
    manager = MemoryLeaseManager()
    manager.create_lease(LEASE)

    with pytest.raises(ConfigurationError, match="belongs to stream 'other'"):
        manager.create_lease(evolve(LEASE, stream_id="other", lease_key="s2"))


@pytest.mark.parametrize(
    "bad",
    [
        {"checkpoint": ""},
        {"lease_key": ""},
        {"counter": -1},
        {"counter": 2**63},
        {"counter": True},
        {"owner": None},
        {"parent_shard_ids": frozenset({"a\nb"})},
        {"parent_shard_ids": frozenset({""})},
        {"pending": PendingCheckpoint("", b"", 1, 1)},
        {"pending": PendingCheckpoint("x", "text", 1, 1)},  # type: ignore[arg-type]
        {"pending": PendingCheckpoint("x", b"", -1, 1)},
        {"pending": PendingCheckpoint("x", b"", 1, True)},
        {"pause": Pause("r", "ann", 7)},  # type: ignore[arg-type]
        {"pause": Pause("r", "ann", "why", 1.5)},  # type: ignore[arg-type]
        {"pause": Pause(b"r", "ann", "why")},  # type: ignore[arg-type]
        {"progress": Progress(0, -1, 0)},
        {"progress": Progress(0, 0, 2**63)},
    ],
)
def test_a_lease_that_no_reader_understands_is_not_stored(bad: dict[str, object]) -> None:
    manager = MemoryLeaseManager("stream")

    with pytest.raises(ConfigurationError):
        manager.create_lease(evolve(LEASE, **bad))  # type: ignore[arg-type]
    assert manager.list_leases() == []


def test_names_of_workers_are_checked() -> None:
    manager = MemoryLeaseManager("stream")
    manager.create_lease(LEASE)

    for call in (
        lambda: manager.take_lease(LEASE, ""),
        lambda: manager.transfer_lease(LEASE, ""),
        lambda: manager.steal_lease(LEASE, ""),
        lambda: manager.steal_lease(LEASE, "a"),
        lambda: manager.steal_lease(evolve(LEASE, owner=""), "b"),
        lambda: manager.update_lease(LEASE, ""),
    ):
        with pytest.raises(ConfigurationError):
            call()
    assert manager.get_lease("s1") == LEASE


def test_one_invalid_write_does_not_hinder_the_others() -> None:
    manager = MemoryLeaseManager("stream")
    manager.create_lease(LEASE)
    invalid, valid = manager.write_many([rule.checkpoint(LEASE, ""), rule.renew(LEASE)])

    assert invalid.outcome is WriteOutcome.UNCERTAIN
    assert valid == ACCEPTED
