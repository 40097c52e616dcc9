"""Names inside a lake, and which of the directories that one start has are the ones to read. Pure.

::

    <path>/_shard=<shard id>/_start=<output key>/_edition=epoch-<epoch>-try-<attempt>/
    <path>/_shard=<shard id>/_start=<output key>/_edition=epoch-<epoch>-try-<attempt>-kept-<first sequence>/
    <path>/_fence/<shard id>/epoch-<epoch>-of-<application>

An *edition* holds the changes of a shard from one start on, as one owner of the shard wrote them. Its *stamp* is the
epoch of that owner, and the number of its try. No two editions of a start ever have the same name. The rules:

* of the editions of a start, the one with the highest stamp counts, and no other;
* an edition of kept rows (what an earlier edition had and the stream no longer has) counts once an ordinary edition
  with the same or a higher stamp is there, and of those kept from the same edition the highest one does.

Both look at names only, and both can only be changed by a higher stamp. So whatever a writer of a lower epoch does, and
however late, changes nothing once a writer of a higher epoch was there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from attrs import frozen

FENCES = "_fence"
"""Directory of the fences; the underscore without ``=`` hides it from Spark's readers."""

STAGING = "_staging"
"""Where jobs write before they publish; hidden for the same reason."""

_EDITION = re.compile(r"epoch-(\d+)-try-(\d+)(?:-kept-(.+))?")
_FENCE = re.compile(r"epoch-(\d+)-of-(.+)")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]")


def escaped(text: str) -> str:
    """Text as a directory name, escaped as Spark does: its readers turn it back."""
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if _PLAIN.match(character):
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode())


@frozen
class Fence:
    """Says that an owner with this epoch has come to the shard."""

    epoch: int
    application: str

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"epoch-{self.epoch}-of-{escaped(self.application)}"

    @classmethod
    def parse(cls, name: str) -> Fence | None:
        """The fence of this name, or ``None`` if it is not the name of one."""
        match = _FENCE.fullmatch(name)
        return None if match is None else cls(int(match[1]), unquote(match[2]))


@frozen
class Edition:
    """One directory under a start."""

    epoch: int
    attempt: int
    kept_from: str = ""
    """First sequence of the edition from which rows were kept, as it stands in the name; empty for ordinary ones."""

    @property
    def stamp(self) -> tuple[int, int]:
        """Decides between editions of one start: the later owner, and its later try."""
        return (self.epoch, self.attempt)

    @property
    def name(self) -> str:
        """What follows ``_edition=``."""
        kept = f"-kept-{self.kept_from}" if self.kept_from else ""
        return f"epoch-{self.epoch}-try-{self.attempt}{kept}"

    @classmethod
    def parse(cls, name: str) -> Edition | None:
        """The edition of this name, or ``None`` if it is not the name of one."""
        match = _EDITION.fullmatch(name)
        return None if match is None else cls(int(match[1]), int(match[2]), match[3] or "")


def newest(editions: Iterable[Edition]) -> Edition | None:
    """The ordinary edition that counts; ``None`` if there is none."""
    ordinary = [edition for edition in editions if not edition.kept_from]
    return max(ordinary, key=lambda edition: edition.stamp, default=None)


def counting(editions: Iterable[Edition]) -> list[Edition]:
    """The editions of one start that are to be read: the newest ordinary one first, then kept rows."""
    present = list(editions)
    winner = newest(present)
    if winner is None:
        return []
    kept: dict[str, Edition] = {}
    for edition in sorted(present, key=lambda one: one.stamp):
        if edition.kept_from and edition.stamp <= winner.stamp:
            kept[edition.kept_from] = edition
    return [winner, *(kept[first] for first in sorted(kept))]


def superseded(editions: Iterable[Edition]) -> list[Edition]:
    """The editions of one start that will never count again; they may be removed at any time, by anyone."""
    present = list(editions)
    counted = counting(present)
    highest = {edition.kept_from: edition.stamp for edition in counted}
    return [one for one in present if one.kept_from in highest and one.stamp < highest[one.kept_from]]


def next_edition(editions: Sequence[Edition], epoch: int) -> Edition:
    """A name that this owner has not used yet for the start."""
    tries = [edition.attempt for edition in editions if edition.epoch == epoch]
    return Edition(epoch, max(tries, default=-1) + 1)
