r"""One commit of one shard, what joins it to the one before, and what every destination decides with it.

A *destination* stores rows together with the commits that they belong to, in one step, in a log of its own. Whatever
happens to writers then shows in that log: a repeat is recognised by its digest, an older owner by its epoch, and a
hole by a digest that names no commit before it.

The chain rule. The digest of a commit is the SHA-256, as 64 hexadecimal letters, of the ASCII bytes of this JSON
array, written without spaces and with every character beyond ASCII as ``\uXXXX``::

    ["streamclient-commit-1", previous_digest, application, shard, number, from, to, count, content]

``previous_digest`` is the empty text in a shard's first commit, and ``content`` the digest of the records
(``streamclient.destinations.rows.digest``). The epoch is left out on purpose: a successor that finishes the batch of a
dead owner stores the same batch, and it must have the same digest to be recognised. So is the loss, which is a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import evolve, field, frozen

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
"""Names the chain rule above; another rule gets another name, so that digests of both are never equal by design."""

EPOCHS_END = 2**31
NUMBERS_END = 2**32
"""Epoch and number of a commit share one signed 64-bit integer where a log orders by one (``Commit.order``)."""

_JSON_NAMES = {
    "application": "application",
    "shard": "shard",
    "epoch": "epoch",
    "number": "number",
    "start": "from",
    "end": "to",
    "count": "count",
    "content": "content",
    "previous_digest": "previous",
    "digest": "digest",
}
_NUMERIC = {"epoch", "number", "count"}
_PAST_LOSS = "past_loss"
"""In JSON only where it is so, as it seldom is."""


@frozen
class Commit:
    """The records of one shard from ``start`` to ``end``, as one owner of the shard stored them. Made by ``after``."""

    application: str
    """The fleet that reads the shard: epochs of two status tables cannot be compared."""
    shard: str
    epoch: int
    """Of the lease's owner, ``ShardInfo.epoch``."""
    number: int
    """1 for the shard's first commit in this destination, and one more for each next one."""
    start: str
    """The checkpoint that the records lie behind: an iterator, or ``TRIM_HORIZON``."""
    end: str
    """The checkpoint behind the last of them; ``SHARD_END`` once the shard has no more."""
    count: int
    """Records between both; 0 where only the position moved."""
    content: str
    """Digest of the records, in the order of their sequence."""
    previous_digest: str
    """``digest`` of the commit before; empty in the first one."""
    digest: str
    """By the chain rule over everything but the epoch and the loss."""
    is_past_loss: bool = False
    """Whether records behind ``start`` had left the stream before they were read, and that was accepted: the others are
    those that were left."""

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
        """The commit that follows ``last``, the destination's last one of the shard.

        Raises:
            StreamClientException: it does not begin where ``last`` ends, or is of another application or shard: the
                destination and the status table disagree, and whatever was written would leave a hole or repeat rows.
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
        """A commit without records of a "shard" that the stream does not have: its end is what the log is to say."""
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
        """Grows from commit to commit of a shard, for logs that compare one integer: ``epoch << 32 | number``."""
        return self.epoch << 32 | self.number

    def keeps(self, promised: Commit) -> bool:
        """Whether this has the very records that another commit promised, whatever came before that one.

        What was promised while the destination's commits were out of sight follows none of them.
        """
        names = ("application", "shard", "start", "end", "count", "content")
        return all(getattr(self, name) == getattr(promised, name) for name in names)

    @property
    def is_intact(self) -> bool:
        """Whether the digest is that of the other values."""
        return self.digest == self.chain_digest()

    def chain_digest(self) -> str:
        """What the chain rule gives for these values."""
        values = [
            CHAIN,
            self.previous_digest,
            self.application,
            self.shard,
            self.number,
            self.start,
            self.end,
            self.count,
            self.content,
        ]
        return sha256(json.dumps(values, separators=(",", ":")).encode("ascii")).hexdigest()

    def to_plain(self) -> dict[str, Any]:
        """The values under their JSON names."""
        plain = {name: getattr(self, own) for own, name in _JSON_NAMES.items()}
        return plain | {_PAST_LOSS: True} if self.is_past_loss else plain

    def to_json(self) -> str:
        """As stored in logs and as the state of a two-phase checkpoint."""
        return json.dumps(self.to_plain(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_plain(cls, plain: object) -> Commit:
        """Read what ``to_plain`` gave. The digest is taken as it stands: ask ``is_intact``.

        Raises:
            CodecError: the value is no commit.
        """
        if not isinstance(plain, dict):
            raise CodecError(f"a commit is a JSON object, not {plain!r}")
        values: dict[str, Any] = {own: plain.get(name) for own, name in _JSON_NAMES.items()}
        for own, value in values.items():
            wanted = int if own in _NUMERIC else str
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise CodecError(f"{_JSON_NAMES[own]!r} of a commit must be {wanted.__name__}, not {value!r}")
        return cls(**values, is_past_loss=plain.get(_PAST_LOSS) is True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Commit:
        """Read what ``to_json`` wrote; ``CodecError`` for anything else."""
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
            f"shard {commit.shard} would be read on from {commit.start}, but the destination's last commit, number "
            f"{last.number} of epoch {last.epoch}, ends at {last.end}: the checkpoint was moved, or the destination "
            "has lost or restored commits; set the shard's checkpoint to that end, or write to another destination"
        )


class FencedCommit(FencedException):
    """Commits were refused because a later owner of a shard has committed there; nothing of them was stored."""

    def __init__(self, message: str, shards: Iterable[str]) -> None:
        super().__init__(message)
        self.shards = frozenset(shards)
        """The shards that have a later owner; commits of the others may be sent again without these."""


@frozen
class LogEntry:
    """One entry of a destination's log, oldest first as ``Destination.log`` gives them."""

    place: str
    """Where it stands, for messages: a version, a snapshot."""
    commits: tuple[Commit, ...] = ()
    carried: tuple[Commit, ...] = ()
    """Last commits of shards, repeated here because the entries that held them are cleared away."""
    totals: Mapping[str, int] = field(factory=dict, hash=False)
    """Records of the shard up to a commit that is carried on, by its digest, where they were counted."""
    damage: str = ""
    """Why the entry could not be read, or cannot be relied upon; empty if all is well."""
    disputed: tuple[Commit, ...] = ()
    """Those of its commits whose epoch or number the entry says otherwise elsewhere; then it has a damage."""

    def to_json(self) -> str:
        """What stands in the log of the destination."""
        lists = {"commits": self.commits, "carried": self.carried}
        plain = {name: [one.to_plain() for one in commits] for name, commits in lists.items() if commits}
        for one in plain.get("carried", ()):
            if one["digest"] in self.totals:
                one["total"] = self.totals[one["digest"]]
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, place: str, text: str) -> LogEntry:
        """Read what ``to_json`` wrote; what cannot be read becomes ``damage``, as a proof must name it."""
        try:
            plain = json.loads(text)
            commits, carried = (tuple(map(Commit.from_plain, plain.get(name, ()))) for name in ("commits", "carried"))
            totals = {one["digest"]: one["total"] for one in plain.get("carried", ()) if "total" in one}
            return cls(place, commits, carried, totals)
        except (ValueError, TypeError, AttributeError) as error:
            return cls(place, damage=f"entry {place} is unreadable: {error}")


def last_of(entries: Iterable[LogEntry], application: str) -> dict[str, Commit]:
    """Each shard's last commit of one application, from entries that stand in order."""
    found: dict[str, Commit] = {}
    for entry in entries:
        for commit in (*entry.carried, *entry.commits):
            if commit.application == application:
                known = found.get(commit.shard)
                if known is None or commit.order >= known.order:
                    found[commit.shard] = commit
    return found


def gone(what: str) -> DependencyException:
    """The error for a table that was seen and is not there any more."""
    return DependencyException(
        f"{what} is gone, with all its commits: moved, removed or out of sight. Nothing is written until it is back; "
        "to begin anew, write to another destination from the beginning, as a new one here would begin in the middle",
        kind=ErrorKind.TRANSIENT,
    )


def is_stored(lasts: Mapping[str, Commit | None], commits: Sequence[Commit]) -> bool:
    """Whether all of ``commits`` are in a log with these last commits; else each of them may be stored now.

    Every destination asks this with a view of its log, and then stores under the condition that the view still holds.

    Raises:
        FencedCommit: a shard has a commit of a later owner.
        StreamClientException: a commit neither is the last one nor follows it, or only some of them are stored.
    """
    stored = [commit for commit in commits if _is_last(lasts.get(commit.shard), commit)]
    waiting = [commit for commit in commits if commit not in stored]
    _refuse_fenced(lasts, waiting)
    for commit in waiting:
        _refuse_out_of_line(lasts.get(commit.shard), commit)
    if stored and waiting:
        raise StreamClientException(
            f"{stored[0]} is stored and {waiting[0]} is not, though they were sent as one: ask last_commits, and send "
            "only what follows"
        )
    return not waiting


def are_among(commits: Sequence[Commit], entries: Iterable[LogEntry]) -> bool:
    """Whether entries of a log hold all of these commits.

    For a try that follows an error: the commits may be in since then, and a successor may have followed them already.
    Their writer is fenced, but what it wrote is stored, and it must be told so.
    """
    digests = {one.digest for entry in entries for one in entry.commits}
    return all(one.digest in digests for one in commits)


def _is_last(last: Commit | None, commit: Commit) -> bool:
    return last is not None and last.digest == commit.digest


def _refuse_fenced(lasts: Mapping[str, Commit | None], commits: Iterable[Commit]) -> None:
    later = {one.shard: last for one in commits if (last := lasts.get(one.shard)) and last.epoch > one.epoch}
    if later:
        own = {one.shard: one.epoch for one in commits}
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
    """Refuse what no destination may be given, before any effect.

    Raises:
        ConfigurationError: there is none, a shard occurs twice, a digest is wrong, or the application is another one.
    """
    if not commits:
        raise ConfigurationError("a commit needs at least one shard; rows without a commit could not be recognised")
    shards = [commit.shard for commit in commits]
    if len(set(shards)) < len(shards):
        twice = sorted({shard for shard in shards if shards.count(shard) > 1})
        raise ConfigurationError(f"one step takes one commit of a shard, but {', '.join(twice)} came more than once")
    for commit in commits:
        if not commit.is_intact:
            raise ConfigurationError(f"the digest of {commit} does not belong to its values; make it with Commit.after")
        if commit.application != application:
            raise ConfigurationError(
                f"{commit} is of application {commit.application!r}, the destination was opened for {application!r}"
            )


class Destination(Protocol):
    """Where rows go, each once. ``streamclient.testing.contracts.destination_contract`` checks one of your own.

    One handle is used by one thread at a time; any number of handles, in any processes, may be open over one place.
    Reading methods show everything that any handle had stored before the call.
    """

    @property
    def application(self) -> str:
        """The fleet whose commits this handle reads and writes; others' in the same place are left alone."""

    def probe(self) -> None:
        """Check that the place can do what exactly-once needs; nothing of it is changed.

        Raises:
            ConfigurationError: it cannot; the message says what to change. ``commit`` asks this by itself first.
        """

    def columns(self) -> Schema | None:
        """The columns of the rows stored so far; ``None`` before the first ones, or if any columns will do.

        Rows in ``commit`` may have fewer columns or more, but a column of the same name has the same type.
        """

    def last_commits(self, shards: Sequence[str]) -> Mapping[str, Commit | None]:
        """The last commit of each of these shards; ``None`` for a shard without one."""

    def commit(self, rows: Table, commits: Sequence[Commit]) -> None:
        """Store rows and commits in one step, if each commit follows the last one of its shard; return once it is safe.

        A repeat of the last commits of all these shards changes nothing and returns. If it raises, either nothing is
        stored or, for a ``DependencyException`` whose kind is AMBIGUOUS, nobody knows: repeat it, or ask
        ``last_commits`` before going on.

        Raises:
            FencedCommit: a later owner has committed one of the shards; nothing was stored.
            UnfitValueError: a column's type is not that of the destination; nothing was stored. Ask ``columns`` again.
            StreamClientException: a commit does not follow the last one; nothing was stored.
            DependencyException: the place does not answer, or is too busy with others' commits.
        """

    def log(self) -> Iterable[LogEntry]:
        """Every entry that the log still has, oldest first, of all applications."""

    def rows(self, shards: Sequence[str] | None = None) -> Iterable[Table]:
        """The stored rows, of some shards or of all, in any order and in parts that fit in memory."""

    def close(self) -> None:
        """Let go of connections. May be called more than once."""


@runtime_checkable
class RowFiles(Protocol):
    """A destination whose rows lie in files, which can be read one by one: what one has lost does not hide the rest."""

    def files(self) -> Iterable[tuple[str, Callable[[], Iterable[Table]]]]:
        """The name of each file, and how to read its rows, in parts that fit in memory."""


@runtime_checkable
class Fences(Protocol):
    """A destination that can list the shards whose late writers it refuses, those too that its log has lost wholly."""

    def fenced_shards(self) -> Iterable[str]:
        """The shards of its application that have a last commit, by what it goes by and not by its log."""


class MergingDestination(Destination, Protocol):
    """A destination whose rows have a key and are replaced, beside those that are only added to."""

    def key_by(self, columns: Sequence[str]) -> None:
        """Find rows by these columns, in their stored names. Called before anything else, and always with the same."""

    def merge(self, keys: Table, fold: Callable[[Table], Table], commits: Sequence[Commit]) -> None:
        """Replace the rows with these keys by what ``fold`` makes of them, with the commits, in one step.

        ``keys`` has the key columns, and each key once. ``fold`` is given the rows that are there, with all columns,
        and returns those that shall be there, at most one for each key. It is called again if another writer was
        quicker, so it must have no effect of its own. What is stored is made of the very rows that are replaced.

        Errors, repeats and fences as in ``commit``; whatever ``fold`` raises comes through, and nothing is stored.
        """

    def another(self) -> MergingDestination:
        """A further handle over the same place, for another thread."""

    def rows_below(self, column: str, bound: int) -> Iterable[Table]:
        """The rows whose value in a column of numbers is below a bound, in parts that fit in memory."""
