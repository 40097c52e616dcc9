"""Column names in tables that do not tell ``Name`` and ``name`` apart. Pure.

Tablestore does, and Delta Lake, Spark and Iceberg by default do not. A name is stored as it is, unless it differs only
in case from one that is there already, or is one of the added columns. Then two underscores and eight letters of its
SHA-256 follow it, so that every writer makes the same name of it, and every reader finds the original in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import sha256

_SEPARATOR = "__"
_DIGEST_LETTERS = 8
"""32 bits, enough to tell the few spellings of one name apart."""


def stored_names(names: Iterable[str], present: Collection[str], reserved: Collection[str] = ()) -> dict[str, str]:
    """For each name the one to store it under, in a table that has the columns ``present``.

    Names that are new get theirs in alphabetical order, so that the order of records does not matter.
    """
    known = {original_name(stored): stored for stored in present if stored not in reserved}
    taken = {name.lower() for name in (*present, *reserved)}
    found = {}
    for name in sorted(set(names)):
        if name in known:
            found[name] = known[name]
            continue
        stored = marked(name) if name.lower() in taken or original_name(name) != name else name
        taken.add(stored.lower())
        found[name] = stored
    return found


def marked(name: str) -> str:
    """The name with the mark that tells it from its other spellings."""
    return f"{name}{_SEPARATOR}{_digest(name)}"


def original_name(stored: str) -> str:
    """The name that a stored one stands for."""
    name, separator, digest = stored.rpartition(_SEPARATOR)
    return name if separator and digest == _digest(name) else stored


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:_DIGEST_LETTERS]
