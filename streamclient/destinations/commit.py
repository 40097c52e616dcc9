r"""One commit of one shard, its link to the previous commit, and the decisions that all destinations share.

A *destination* stores rows together with the commits that they belong to, in one step, in a log of its own. The log
shows every error of writers: a repeated commit is recognised by its digest, a commit of an older owner by its epoch,
and a hole by a ``previous_digest`` that no earlier commit has.

The chain rule. The digest of a commit is the SHA-256, as 64 hexadecimal letters, of the ASCII bytes of this JSON
array, written without spaces and with every character beyond ASCII as ``\uXXXX``::

    ["streamclient-commit-1", previous_digest, application, shard, number, from, to, count, content]

``previous_digest`` is the empty text in a shard's first commit, and ``content`` the digest of the records
(``streamclient.destinations.rows.digest``). The epoch is left out on purpose: if a successor finishes the batch of a
dead owner, the batch must have the same digest to be recognised. ``is_past_loss`` is left out, too, because it is only
a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import evolve, field, frozen

from streamclient.base.kept_formats import FORMAT_MEMBER, KeptFormat
from streamclient.destinations.rows.digest import records_digest
from streamclient.errors import (
    CodecError,
    ConfigurationError,
    DependencyException,
    ErrorKind,
    FencedException,
    StreamClientException,
)
from streamclient.model import CheckpointPosition

if TYPE_CHECKING:
    from pyarrow import Schema, Table

CHAIN = "streamclient-commit-1"
"""The name of the chain rule above. The name is part of each digest, so a rule with another name gives other
digests."""

EPOCHS_END = 2**31
NUMBERS_END = 2**32
"""The exclusive upper limits of a commit's epoch and number: ``Commit.order`` puts both into one signed 64-bit
integer."""

COMMIT_FORMAT = KeptFormat("the commit")
"""The format of a commit in JSON: in the log of a destination, and in a prepared checkpoint. It covers the two rules of
digests and the columns that are added to rows."""

_JSON_NAMES = {
    **{name: name for name in ("application", "shard", "epoch", "number")},
    "start": "from",
    "end": "to",
    "count": "count",
    "content": "content",
    "previous_digest": "previous",
    "digest": "digest",
}
_NUMERIC = {"epoch", "number", "count"}
_PAST_LOSS = "past_loss"
"""The JSON key of ``is_past_loss``. It is written only when the value is true, which is rare."""


@frozen
class Commit:
    """The records of one shard from ``start`` to ``end``, as one owner of the shard stored them. ``after`` makes it."""

    application: str
    """The fleet that reads the shard. Epochs of two status tables cannot be compared, so each fleet has its own
    commits."""
    shard: str
    epoch: int
    """The epoch of the lease's owner, ``ShardInfo.epoch``."""
    number: int
    """1 for the shard's first commit in this destination. Each next commit adds 1."""
    start: str
    """The checkpoint before the first record: an iterator, or ``TRIM_HORIZON``."""
    end: str
    """The checkpoint after the last record; ``SHARD_END`` once the shard has no more records."""
    count: int
    """The number of records between ``start`` and ``end``; 0 if only the position moved."""
    content: str
    """Digest of the records, in the order of their sequence."""
    previous_digest: str
    """The ``digest`` of the shard's previous commit; empty in the first commit."""
    digest: str
    """The digest by the chain rule. It covers everything but the epoch and ``is_past_loss``."""
    is_past_loss: bool = False
    """Whether records after ``start`` were lost before they were read, and the loss was accepted. The commit then holds
    the records that remained."""

    @classmethod
    def after(
        cls,
        last: Commit | None,
        *,
        application: str,
        shard: str,
        epoch: int,
        start: str,
        end: str,
        count: int,
        content: str,
        is_past_loss: bool = False,
    ) -> Commit:
        """Return the commit that follows ``last``, the destination's last commit of the shard.

        Raises:
            StreamClientException: the commit does not begin where ``last`` ends, or has another application or shard.
                The destination and the status table disagree, and a write would leave a hole or repeat rows.
            ConfigurationError: a value is out of range.
        """
        made = cls(
            application=application,
            shard=shard,
            epoch=epoch,
            number=1 if last is None else last.number + 1,
            start=start,
            end=end,
            count=count,
            content=content,
            previous_digest="" if last is None else last.digest,
            digest="",
            is_past_loss=is_past_loss,
        )
        _check_values(made)
        if last is not None:
            _check_continues(last, made)
        return evolve(made, digest=made.chain_digest())

    @classmethod
    def note(cls, last: Commit | None, *, application: str, shard: str, text: str) -> Commit:
        """Return a commit without records: no stream has its ``shard``, and its ``end`` is the note's ``text``."""
        return cls.after(
            last,
            application=application,
            shard=shard,
            epoch=0,
            start=CheckpointPosition.TRIM_HORIZON if last is None else last.end,
            end=text,
            count=0,
            content=records_digest(()),
        )

    @property
    def order(self) -> int:
        """``epoch << 32 | number``. It grows with each commit of a shard, for logs that order by one integer."""
        return self.epoch << 32 | self.number

    def keeps(self, promised: Commit) -> bool:
        """Return whether this commit has exactly the records that ``promised`` announced.

        The commit before it may differ. If a commit was promised while the destination's commits could not be read, it
        does not follow any of those commits.
        """
        names = ("application", "shard", "start", "end", "count", "content")
        return all(getattr(self, name) == getattr(promised, name) for name in names)

    @property
    def is_intact(self) -> bool:
        """Whether ``digest`` agrees with the other values."""
        return self.digest == self.chain_digest()

    def chain_digest(self) -> str:
        """Return the digest that the chain rule gives for these values."""
        names = ("previous_digest", "application", "shard", "number", "start", "end", "count", "content")
        values = [CHAIN, *(getattr(self, name) for name in names)]
        return sha256(json.dumps(values, separators=(",", ":")).encode("ascii")).hexdigest()

    def to_plain(self) -> dict[str, Any]:
        """Return the values under their JSON names."""
        plain = {name: getattr(self, own) for own, name in _JSON_NAMES.items()}
        return plain | {_PAST_LOSS: True} if self.is_past_loss else plain

    def to_json(self) -> str:
        """Return the JSON text that logs and the state of a two-phase checkpoint store."""
        return json.dumps(self.to_plain(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_plain(cls, plain: object) -> Commit:
        """Read the result of ``to_plain``. The digest is not checked here: ask ``is_intact``.

        Raises:
            CodecError: the value is not a commit.
            StreamClientException: the commit is of a version that is not known, so its log must be left alone.
        """
        if not isinstance(plain, dict):
            raise CodecError(f"a commit is a JSON object, not {plain!r}")
        if problem := COMMIT_FORMAT.problem(plain.get(FORMAT_MEMBER)):
            raise StreamClientException(problem)
        values: dict[str, Any] = {own: plain.get(name) for own, name in _JSON_NAMES.items()}
        for own, value in values.items():
            wanted = int if own in _NUMERIC else str
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise CodecError(f"{_JSON_NAMES[own]!r} of a commit must be {wanted.__name__}, not {value!r}")
        return cls(**values, is_past_loss=plain.get(_PAST_LOSS) is True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Commit:
        """Read the text that ``to_json`` wrote; raise as ``from_plain`` for any other text."""
        try:
            return cls.from_plain(json.loads(text))
        except ValueError as error:
            raise CodecError(f"not a commit: {error}") from error

    def __str__(self) -> str:
        return f"commit {self.number} of shard {self.shard} (epoch {self.epoch}), from {self.start} to {self.end}"


def _check_values(commit: Commit) -> None:
    for name, value, end in (
        ("epoch", commit.epoch, EPOCHS_END),
        ("number", commit.number, NUMBERS_END),
        ("count", commit.count, 2**63),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < end:
            raise ConfigurationError(f"{name} of a commit must be a whole number from 0 to below {end}, not {value!r}")
    for name in ("application", "shard", "start", "end"):
        if not isinstance(getattr(commit, name), str) or not getattr(commit, name):
            raise ConfigurationError(f"{name} of a commit must be a non-empty text, not {getattr(commit, name)!r}")


def _check_continues(last: Commit, commit: Commit) -> None:
    if (last.application, last.shard) != (commit.application, commit.shard):
        raise ConfigurationError(
            f"{commit} of application {commit.application!r} cannot follow {last} of application {last.application!r}"
        )
    if last.end == CheckpointPosition.SHARD_END or last.end != commit.start:
        raise StreamClientException(
            f"shard {commit.shard} would continue at {commit.start}, but the destination's last commit, number "
            f"{last.number} of epoch {last.epoch}, ends at {last.end}: the checkpoint was moved, or the destination "
            "has lost or restored commits; set the shard's checkpoint to that end, or write to another destination"
        )


class FencedCommit(FencedException):
    """A later owner has committed one of the shards, so the commits were refused, and none of them was stored."""

    def __init__(self, message: str, shards: Iterable[str]) -> None:
        super().__init__(message)
        self.shards: frozenset[str] = frozenset(shards)
        """The shards that have a later owner. The commits of the other shards may be sent again, without these
        shards."""


@frozen
class LogEntry:
    """One entry of a destination's log; ``Destination.log`` returns the oldest first."""

    place: str
    """The entry's position in the log, for messages: a version, a snapshot."""
    commits: tuple[Commit, ...] = ()
    carried: tuple[Commit, ...] = ()
    """Last commits of shards, repeated in this entry because the entries that first held them are removed."""
    totals: Mapping[str, int] = field(factory=dict, hash=False)
    """The number of a shard's records up to a carried commit, by the digest of that commit; absent if not counted."""
    damage: str = ""
    """The reason why the entry cannot be read or relied upon; empty for a sound entry."""
    disputed: tuple[Commit, ...] = ()
    """Commits of this entry that have another epoch or number in another part of the entry; ``damage`` is then set."""

    def to_json(self) -> str:
        """Return the text that the destination's log stores."""
        lists = {"commits": self.commits, "carried": self.carried}
        plain = {name: [commit.to_plain() for commit in commits] for name, commits in lists.items() if commits}
        for commit in plain.get("carried", ()):
            if commit["digest"] in self.totals:
                commit["total"] = self.totals[commit["digest"]]
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, place: str, text: str) -> LogEntry:
        """Read the text of ``to_json``. An unreadable text gives an entry with ``damage`` that a proof can name.

        Raises:
            StreamClientException: a commit is of a version that is not known, so the log must be left alone.
        """
        try:
            plain = json.loads(text)
            commits, carried = (tuple(map(Commit.from_plain, plain.get(name, ()))) for name in ("commits", "carried"))
            totals = {commit["digest"]: commit["total"] for commit in plain.get("carried", ()) if "total" in commit}
            return cls(place, commits, carried, totals)
        except (ValueError, TypeError, AttributeError) as error:
            return cls(place, damage=f"entry {place} is unreadable: {error}")


def last_of(entries: Iterable[LogEntry], application: str) -> dict[str, Commit]:
    """Return the last commit of each shard in ``application``; ``entries`` come oldest first."""
    found: dict[str, Commit] = {}
    for entry in entries:
        for commit in (*entry.carried, *entry.commits):
            if commit.application == application:
                known = found.get(commit.shard)
                if known is None or commit.order >= known.order:
                    found[commit.shard] = commit
    return found


def gone(what: str) -> DependencyException:
    """Return the error for a table that this process has seen and that no longer exists."""
    return DependencyException(
        f"{what} is gone, with all its commits: moved, removed or out of sight. Nothing is written until it is back; "
        "to start again, write to another destination from the beginning: a new one here would begin in the middle",
        kind=ErrorKind.TRANSIENT,
    )


def is_stored(lasts: Mapping[str, Commit | None], commits: Sequence[Commit]) -> bool:
    """Return whether all of ``commits`` are in a log with the last commits ``lasts``. If not, each may be stored.

    Every destination calls this with a view of its log, and then stores the commits on condition that the view still
    holds. After a crash, ``DestinationOutput.begin`` has already compared the last commit with the prepared one.

    Raises:
        FencedCommit: a shard has a commit of a later owner.
        StreamClientException: a commit is not the last one and does not follow it, or only some commits are stored.
    """
    stored = [commit for commit in commits if _is_last(lasts.get(commit.shard), commit)]
    waiting = [commit for commit in commits if commit not in stored]
    _refuse_fenced(lasts, waiting)
    for commit in waiting:
        _refuse_out_of_line(lasts.get(commit.shard), commit)
    if stored and waiting:
        raise StreamClientException(
            f"{stored[0]} is stored and {waiting[0]} is not, although they were sent as one: call last_commits, and "
            "send only the commits after those"
        )
    return not waiting


def are_among(commits: Sequence[Commit], entries: Iterable[LogEntry]) -> bool:
    """Return whether the entries ``entries`` of a log hold all of ``commits``.

    A retry after an error calls this function. The failed try may have stored the commits after all, and a successor
    may already have added its own. The writer of the commits is then fenced, but must learn that its commits are
    stored.
    """
    digests = {commit.digest for entry in entries for commit in entry.commits}
    return all(commit.digest in digests for commit in commits)


def _is_last(last: Commit | None, commit: Commit) -> bool:
    return last is not None and last.digest == commit.digest


def _refuse_fenced(lasts: Mapping[str, Commit | None], commits: Iterable[Commit]) -> None:
    later = {
        commit.shard: last for commit in commits if (last := lasts.get(commit.shard)) and last.epoch > commit.epoch
    }
    if later:
        own = {commit.shard: commit.epoch for commit in commits}
        said = "; ".join(
            f"shard {shard} was committed by epoch {last.epoch}, this writer has epoch {own[shard]}"
            for shard, last in sorted(later.items())
        )
        raise FencedCommit(f"the writer has lost its lease: {said}", later)


def _refuse_out_of_line(last: Commit | None, commit: Commit) -> None:
    if last is None and (commit.number, commit.previous_digest) == (1, ""):
        return
    if last is not None and (commit.number, commit.previous_digest) == (last.number + 1, last.digest):
        return
    raise StreamClientException(f"{commit} follows no commit of the destination, whose last one is {last or 'none'}")


def check_commits(commits: Sequence[Commit], application: str) -> None:
    """Refuse commits that are invalid for every destination, before they have any effect.

    Raises:
        ConfigurationError: there is no commit, a shard occurs twice, a digest is wrong, or the application is not that
            of the destination.
    """
    if not commits:
        raise ConfigurationError(
            "a step needs a commit of at least one shard: otherwise a repeated step is not recognised"
        )
    shards = [commit.shard for commit in commits]
    if len(set(shards)) < len(shards):
        twice = sorted({shard for shard in shards if shards.count(shard) > 1})
        raise ConfigurationError(f"a step takes one commit per shard, and has several of {', '.join(twice)}")
    for commit in commits:
        if not commit.is_intact:
            raise ConfigurationError(f"the digest of {commit} does not belong to its values; make it with Commit.after")
        if commit.application != application:
            raise ConfigurationError(
                f"{commit} is of application {commit.application!r}, and the destination was opened for {application!r}"
            )


class Destination(Protocol):
    """A table that stores each row exactly once.

    ``streamclient.testing.contracts.destination_contract`` tests a destination of your own.

    One thread at a time uses a handle. Any number of handles, in any processes, may be open over one table. Reading
    methods show everything that any handle had stored before the call.
    """

    @property
    def application(self) -> str:
        """The fleet whose commits this handle reads and writes; commits of other fleets in the table stay untouched."""

    def probe(self) -> None:
        """Check, without changing the table, that it can do what exactly-once needs.

        Raises:
            ConfigurationError: the table cannot; the message says what to change. The first ``commit`` checks this by
                itself.
        """

    def columns(self) -> Schema | None:
        """Return the columns of the stored rows; ``None`` before the first rows, or if rows may have any columns.

        Rows in ``commit`` may have fewer columns or more, but a column of the same name has the same type.
        """

    def last_commits(self, shards: Sequence[str]) -> Mapping[str, Commit | None]:
        """Return the last commit of each of these shards; ``None`` for a shard without a commit."""

    def commit(self, rows: Table, commits: Sequence[Commit]) -> None:
        """Store rows and commits in one step, if each commit follows its shard's last one; return once they are safe.

        If the commits are already the last ones of their shards, the call changes nothing and returns. After an error
        nothing is stored, with one exception: after a ``DependencyException`` of kind AMBIGUOUS the outcome is unknown.
        In that case repeat the call, or ask ``last_commits`` before you go on.

        Raises:
            FencedCommit: a later owner has committed one of the shards; nothing was stored.
            UnfitValueError: a column's type differs from the destination's; nothing was stored. Ask ``columns`` again.
            StreamClientException: a commit does not follow the last one; nothing was stored.
            DependencyException: the table does not answer, or is too busy with commits of other writers.
        """

    def log(self) -> Iterable[LogEntry]:
        """Return every entry that the log still has, oldest first, of all applications."""

    def rows(self, shards: Sequence[str] | None = None) -> Iterable[Table]:
        """Return the stored rows of ``shards``, by default of all shards.

        Rows come in any order, in parts that fit in memory.
        """

    def close(self) -> None:
        """Release connections. May be called more than once."""


@runtime_checkable
class RowFiles(Protocol):
    """A destination whose rows are in files that can be read one by one. So a damaged file does not hide the others."""

    def files(self) -> Iterable[tuple[str, Callable[[], Iterable[Table]]]]:
        """Return the name of each file, and a function that reads its rows in parts that fit in memory."""


@runtime_checkable
class Fences(Protocol):
    """A destination that can list the shards whose late writers it refuses, even shards that its log has lost."""

    def fenced_shards(self) -> Iterable[str]:
        """Return the shards of this application for which the fence has a last commit.

        The log may have lost these shards.
        """


class MergingDestination(Destination, Protocol):
    """A destination whose rows have a key, so that rows can be replaced as well as appended."""

    def key_by(self, columns: Sequence[str]) -> None:
        """Identify rows by ``columns``, given by their stored names. Call it first, always with the same columns."""

    def merge(self, keys: Table, fold: Callable[[Table], Table], commits: Sequence[Commit]) -> None:
        """Replace the rows with these keys by the result of ``fold``, together with the commits, in one step.

        ``keys`` has the key columns, and each key once. ``fold`` is given the present rows, with all columns, and
        returns the rows to store instead, at most one for each key. If another writer was quicker, ``fold`` is called
        again, so ``fold`` must not have side effects. The rows that are stored were always made from exactly the rows
        that they replace.

        Errors, repeats and fences are as in ``commit``. An error of ``fold`` is passed on to the caller, and nothing is
        stored.
        """

    def another(self) -> MergingDestination:
        """Return another handle over the same table, for use by another thread."""

    def rows_below(self, column: str, bound: int) -> Iterable[Table]:
        """Return the rows whose value in the numeric ``column`` is below ``bound``, in parts that fit in memory."""
