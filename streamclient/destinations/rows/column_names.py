"""Column names in tables that do not distinguish ``Name`` from ``name``. Pure.

Tablestore distinguishes such names; Delta Lake, Spark and Iceberg by default do not. A name is stored unchanged, unless
it is the name of an added column or differs from a stored name only in case. In these two cases it gets a suffix of two
underscores and eight letters of its SHA-256. So every writer derives the same name, and every reader can recover the
original name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import sha256

_SEPARATOR = "__"
_DIGEST_LETTERS = 8
"""32 bits, enough to distinguish the few spellings of one name."""


def stored_names(names: Iterable[str], present: Collection[str], reserved: Collection[str] = ()) -> dict[str, str]:
    """Return the stored name for each name, in a table that has the columns ``present``.

    New names are assigned in alphabetical order, so that the order of records does not matter.
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
    """Return the name with the mark that distinguishes it from its other spellings."""
    return f"{name}{_SEPARATOR}{_digest(name)}"


def original_name(stored: str) -> str:
    """Return the original name of a stored name."""
    name, separator, digest = stored.rpartition(_SEPARATOR)
    return name if separator and digest == _digest(name) else stored


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:_DIGEST_LETTERS]
