r"""A shard's commits, chained by digests, and the rules by which every destination accepts or refuses a commit.

A *destination* stores rows and their commits in one step, and keeps the commits in a log. The log reveals every error
of a writer. If a digest occurs twice, a writer has repeated a commit. If a commit has a lower epoch than the commit
before it, an earlier owner has written. If no earlier commit has the digest ``previous_digest``, a commit is missing.

By the *chain rule*, the digest of a commit is the SHA-256, as 64 hexadecimal digits, of the ASCII bytes of this JSON
array, written without spaces and with every character beyond ASCII as ``\uXXXX``::

    ["streamclient-commit-1", previous_digest, application, shard, number, from, to, count, content]

``previous_digest`` is the empty text in a shard's first commit. ``from`` and ``to`` are ``Commit.start`` and
``Commit.end``. ``content`` is the digest of the records (``streamclient.destinations.rows.digest``). The array lacks
the epoch on purpose: if a successor finishes the batch of a dead owner, the digest must stay the same, so that the
batch is recognised. The array lacks ``is_past_loss``, because it is only a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import evolve, field, frozen

from streamclient.base.kept_formats import FORMAT_MEMBER, KeptFormat, parse_json
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
"""The name of the chain rule, which is the first element of each hashed array. So a later rule with another name gives
other digests."""

EPOCHS_END = 2**31
NUMBERS_END = 2**32
"""The exclusive upper limit of a commit's number. ``EPOCHS_END`` is the limit of its epoch. ``Commit.order`` packs the
epoch and the number into one signed 64-bit integer."""

COMMIT_FORMAT = KeptFormat("the commit")
"""The version of a commit as JSON, in a destination's log and in a prepared checkpoint. The version also covers the
rules for the digests of records and commits, and the columns that a destination adds to rows."""

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
"""The JSON key of ``is_past_loss``. The key is written only if the value is true."""


@frozen
class Commit:
    """The statement that a lease owner stored a shard's records from ``start`` to ``end``. ``after`` makes a commit."""

    application: str
    """The name of the fleet that reads the shard. Each fleet has commits of its own, because epochs of two status
    tables cannot be compared."""
    shard: str
    epoch: int
    """The epoch of the lease owner that stored the records; see ``ShardInfo.epoch``."""
    number: int
    """The number of this commit in the shard's chain. The shard's first commit in this destination has the number 1."""
    start: str
    """The checkpoint at which the records begin: an iterator, or ``TRIM_HORIZON``."""
    end: str
    """The checkpoint after the last record: an iterator, or ``SHARD_END`` if the shard is closed and ends here."""
    count: int
    """The number of records between ``start`` and ``end``; 0 if only the position moved."""
    content: str
    """The digest of the records in their order in the shard; see ``records_digest``."""
    previous_digest: str
    """The ``digest`` of the shard's previous commit; empty in the first commit."""
    digest: str
    """The digest of this commit by the chain rule. It covers all values except the epoch and ``is_past_loss``."""
    is_past_loss: bool = False
    """Whether the shard lost records that come after ``start`` and that the worker had not read yet. An operator has
    accepted this loss, and the commit has only the remaining records."""

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
        """Return the commit that follows ``last``, the destination's last commit of the shard (``None``: no commit).

        Raises:
            StreamClientException: the commit does not begin where ``last`` ends. The destination and the status table
                disagree, so a write would leave out or repeat rows.
            ConfigurationError: a value is out of range, or ``last`` has another application or shard.
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
        """Return a commit that stores the note ``text`` as its ``end``, without records.

        The notes form a chain of their own, with the name ``shard``. ``last`` is the chain's last note. The name must
        not be the id of a shard of a stream.
        """
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
        """The epoch and the number as one integer, ``epoch << 32 | number``. It grows with each commit of a shard."""
        return self.epoch << 32 | self.number

    def keeps(self, promised: Commit) -> bool:
        """Return whether this commit has exactly the records of ``promised``, a commit that a worker prepared earlier.

        The previous commits of the two may differ. If the worker could not read the destination's commits when it
        prepared ``promised``, then ``promised`` has no previous commit.
        """
        names = ("application", "shard", "start", "end", "count", "content")
        return all(getattr(self, name) == getattr(promised, name) for name in names)

    @property
    def is_intact(self) -> bool:
        """Whether ``digest`` fits the other values by the chain rule. If not, the commit was altered."""
        return self.digest == self.chain_digest()

    def chain_digest(self) -> str:
        """Compute the digest of this commit by the chain rule, whatever ``digest`` is."""
        names = ("previous_digest", "application", "shard", "number", "start", "end", "count", "content")
        values = [CHAIN, *(getattr(self, name) for name in names)]
        return sha256(json.dumps(values, separators=(",", ":")).encode("ascii")).hexdigest()

    def to_plain(self) -> dict[str, Any]:
        """Return the commit as a dictionary, for JSON."""
        plain = {name: getattr(self, own) for own, name in _JSON_NAMES.items()}
        return plain | {_PAST_LOSS: True} if self.is_past_loss else plain

    def to_json(self) -> str:
        """Return the commit as JSON text, as it is stored in logs and in prepared checkpoints."""
        return json.dumps(self.to_plain(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_plain(cls, plain: object) -> Commit:
        """Read a commit from ``plain``, a result of ``to_plain``. The digest is not checked; see ``is_intact``.

        Raises:
            CodecError: ``plain`` is not a commit.
            StreamClientException: the version of the commit is unknown, so this program must not change its log.
        """
        if not isinstance(plain, dict):
            raise CodecError(f"a commit must be a JSON object, not {plain!r}")
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
        """Read a commit from ``text``, a result of ``to_json``. The errors are the same as in ``from_plain``."""
        try:
            return cls.from_plain(parse_json(text))
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
    """A later owner has committed to one of the shards, so the destination stored no commit of this call."""

    def __init__(self, message: str, shards: Iterable[str]) -> None:
        super().__init__(message)
        self.shards: frozenset[str] = frozenset(shards)
        """The shards to which a later owner has committed. The caller may send the commits of other shards again."""


@frozen
class LogEntry:
    """One entry of a destination's log, with the commits that one call of ``Destination.commit`` stored."""

    place: str
    """The entry's position in the log, for messages: for example a version of a Delta table, or an Iceberg snapshot."""
    commits: tuple[Commit, ...] = ()
    carried: tuple[Commit, ...] = ()
    """The last commits of shards, copied from older entries before those entries are removed."""
    totals: Mapping[str, int] = field(factory=dict, hash=False)
    """The number of the shard's records up to the end of a carried commit, by the commit's digest, if it is known."""
    damage: str = ""
    """The reason why the entry cannot be read or trusted; empty for a sound entry."""
    disputed: tuple[Commit, ...] = ()
    """Commits for which two parts of this entry name different epochs or numbers. ``damage`` is then set, too."""

    def to_json(self) -> str:
        """Return the entry as JSON text for the destination's log."""
        lists = {"commits": self.commits, "carried": self.carried}
        plain = {name: [commit.to_plain() for commit in commits] for name, commits in lists.items() if commits}
        for commit in plain.get("carried", ()):
            if commit["digest"] in self.totals:
                commit["total"] = self.totals[commit["digest"]]
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, place: str, text: str) -> LogEntry:
        """Read the entry at ``place`` from ``text``, which ``to_json`` made. For an unreadable text, set ``damage``.

        Raises:
            StreamClientException: the version of a commit is unknown, so this program must not change the log.
        """
        try:
            plain = parse_json(text)
            commits, carried = (tuple(map(Commit.from_plain, plain.get(name, ()))) for name in ("commits", "carried"))
            totals = {commit["digest"]: commit["total"] for commit in plain.get("carried", ()) if "total" in commit}
            return cls(place, commits, carried, totals)
        except (ValueError, TypeError, AttributeError) as error:
            return cls(place, damage=f"entry {place} is unreadable: {error}")


def last_of(entries: Iterable[LogEntry], application: str) -> dict[str, Commit]:
    """Return the last commit of each shard of ``application`` in ``entries``, which are sorted from old to new."""
    found: dict[str, Commit] = {}
    for entry in entries:
        for commit in (*entry.carried, *entry.commits):
            if commit.application == application:
                known = found.get(commit.shard)
                if known is None or commit.order >= known.order:
                    found[commit.shard] = commit
    return found


def gone(what: str) -> DependencyException:
    """Return the error for a table that this process has seen and that no longer exists; ``what`` names the table."""
    return DependencyException(
        f"{what} is gone, with all its commits: moved, removed or out of sight. Nothing is written until it is back; "
        "to start again, write to another destination from the beginning: a new table here would begin in the middle",
        kind=ErrorKind.TRANSIENT,
    )


def is_stored(lasts: Mapping[str, Commit | None], commits: Sequence[Commit]) -> bool:
    """Return ``True`` if all of ``commits`` are stored already, and ``False`` if all of them may be stored now.

    ``lasts`` maps each shard to its last commit in the destination's log. Every destination calls this function. It
    then stores the commits only if no other writer has changed the log meanwhile.

    Raises:
        FencedCommit: a shard has a commit of a later owner.
        StreamClientException: a commit neither is the last commit of its shard nor follows that commit. Or only some
            of ``commits`` are stored.
    """
    stored = [commit for commit in commits if _is_last(lasts.get(commit.shard), commit)]
    waiting = [commit for commit in commits if commit not in stored]
    _refuse_fenced(lasts, waiting)
    for commit in waiting:
        _refuse_out_of_line(lasts.get(commit.shard), commit)
    if stored and waiting:
        raise StreamClientException(
            f"{stored[0]} is stored and {waiting[0]} is not, although they were sent as one: call last_commits, and "
            "send only later commits"
        )
    return not waiting


def are_among(commits: Sequence[Commit], entries: Iterable[LogEntry]) -> bool:
    """Return whether the log entries ``entries`` hold all of ``commits``.

    A writer calls this after an error, because the failed attempt may have stored the commits. If a successor has added
    commits meanwhile, the writer is fenced, but must still learn that its own commits are stored.
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
    raise StreamClientException(f"{commit} does not follow the shard's last stored commit: {last or 'none'}")


def check_commits(commits: Sequence[Commit], application: str) -> None:
    """Refuse commits that are invalid for every destination, before they have any effect.

    Raises:
        ConfigurationError: ``commits`` is empty, a shard occurs twice, a digest is wrong, or a commit's application
            differs from ``application``.
    """
    if not commits:
        raise ConfigurationError(
            "commits is empty; give at least one shard's commit: without a commit, a repeated call is not recognised"
        )
    shards = [commit.shard for commit in commits]
    if len(set(shards)) < len(shards):
        twice = sorted({shard for shard in shards if shards.count(shard) > 1})
        raise ConfigurationError(f"give at most one commit per shard, not several of {', '.join(twice)}")
    for commit in commits:
        if not commit.is_intact:
            raise ConfigurationError(f"the digest of {commit} does not belong to its values; make it with Commit.after")
        if commit.application != application:
            raise ConfigurationError(
                f"{commit} is of application {commit.application!r}, and the destination was opened for {application!r}"
            )


class Destination(Protocol):
    """A handle over a table that stores each row exactly once.

    To test a destination of your own, use ``streamclient.testing.contracts.destination_contract``.

    Only one thread at a time may use a handle. Any number of handles, in any processes, may be open over one table. A
    method that reads shows everything that any handle had stored before the call.
    """

    @property
    def application(self) -> str:
        """The name of the fleet whose commits this handle reads and writes. Other fleets' commits stay unchanged."""

    def probe(self) -> None:
        """Check, without changing the table, that the table can store each row exactly once.

        Raises:
            ConfigurationError: the table cannot store each row exactly once. The message says what to change. The first
                ``commit`` makes the same check.
        """

    def columns(self) -> Schema | None:
        """Return the columns of the stored rows; ``None`` before the first rows, or if rows may have any columns.

        The rows given to ``commit`` may lack some of these columns and may have others. A column of the same name must
        have the same type.
        """

    def last_commits(self, shards: Sequence[str]) -> Mapping[str, Commit | None]:
        """Return the last commit of each of ``shards``; ``None`` for a shard without a commit."""

    def commit(self, rows: Table, commits: Sequence[Commit]) -> None:
        """Store ``rows`` and ``commits`` durably in one step, if each commit follows the last commit of its shard.

        If the commits are already the last ones of their shards, the call changes nothing and returns. After an error,
        nothing is stored, with one exception: after a ``DependencyException`` of kind AMBIGUOUS, the outcome is
        unknown. Repeat such a call, or look at ``last_commits``, before you continue.

        Raises:
            FencedCommit: a later owner has committed to one of the shards; nothing was stored.
            UnfitValueError: a column's type differs from the destination's; nothing was stored. Ask ``columns`` again.
            StreamClientException: a commit does not follow its shard's last commit; nothing was stored.
            DependencyException: the table does not answer, or is too busy with commits of other writers.
        """

    def log(self) -> Iterable[LogEntry]:
        """Return all entries that the log still has, oldest first, with the commits of all applications."""

    def rows(self, shards: Sequence[str] | None = None) -> Iterable[Table]:
        """Return the stored rows of ``shards``, by default of all shards.

        Rows come in any order, in parts that fit in memory.
        """

    def close(self) -> None:
        """Release connections. A second call is harmless."""


@runtime_checkable
class RowFiles(Protocol):
    """A destination whose files can be read one by one, so that a damaged file does not hide the other files."""

    def files(self) -> Iterable[tuple[str, Callable[[], Iterable[Table]]]]:
        """Return the name of each file, with a function that reads the file's rows in parts that fit in memory."""


@runtime_checkable
class Fences(Protocol):
    """A destination that can list the shards for which it refuses an earlier owner."""

    def fenced_shards(self) -> Iterable[str]:
        """Return the shards of this application for which the destination would refuse an earlier owner.

        The log may no longer have commits of these shards.
        """


class MergingDestination(Destination, Protocol):
    """A destination whose rows have a key, so that a commit can replace rows as well as append them."""

    def key_by(self, columns: Sequence[str]) -> None:
        """Set the key of the rows to ``columns``, given by their stored names.

        Call this before any other method, with the same columns for every handle of the table.
        """

    def merge(self, keys: Table, fold: Callable[[Table], Table], commits: Sequence[Commit]) -> None:
        """Replace the rows with ``keys`` by the result of ``fold``, and store ``commits``, in one step.

        ``keys`` has the key columns, and each key once. ``fold`` gets the present rows with these keys, with all their
        columns. It returns the rows to store instead, at most one for each key. If another writer changes the table
        meanwhile, the destination calls ``fold`` again with the newer rows, so ``fold`` must not have side effects.

        Repeated calls and errors are treated as in ``commit``. If ``fold`` raises an error, nothing is stored, and the
        caller gets that error.
        """

    def another(self) -> MergingDestination:
        """Return another handle over the same table, for another thread."""

    def rows_below(self, column: str, bound: int) -> Iterable[Table]:
        """Return the rows whose value in the numeric ``column`` is below ``bound``, in parts that fit in memory."""
