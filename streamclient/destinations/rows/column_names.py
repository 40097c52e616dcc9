"""The names under which columns are stored in tables that do not distinguish ``Name`` from ``name``.

Tablestore distinguishes such names, but by default Delta Lake, Spark and Iceberg do not. Usually a column's name is
stored unchanged. If it is the name of an added column (``change_rows.ADDED``), or differs from another stored name only
in case, the stored name has a suffix: two underscores and eight hexadecimal digits of the name's SHA-256. So every
writer derives the same stored name, and every reader can recover the original name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import sha256

_SEPARATOR = "__"
_DIGEST_LETTERS = 8
"""The number of hexadecimal digits in a suffix. Their 32 bits suffice to distinguish the few spellings of one name."""


def stored_names(names: Iterable[str], present: Collection[str], reserved: Collection[str] = ()) -> dict[str, str]:
    """Return the stored name of each of ``names`` in a table that already has the columns ``present``.

    A stored name never equals one of ``reserved``. New names are handled in alphabetical order, so that the result does
    not depend on the order of the records.
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
    """Return ``name`` with its suffix, by which it differs from other spellings of the name."""
    return f"{name}{_SEPARATOR}{_digest(name)}"


def original_name(stored: str) -> str:
    """Return the original name, in the source table, of the column with the stored name ``stored``."""
    name, separator, digest = stored.rpartition(_SEPARATOR)
    return name if separator and digest == _digest(name) else stored


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:_DIGEST_LETTERS]
