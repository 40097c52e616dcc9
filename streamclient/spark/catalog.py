"""Which directories of a lake hold its changes. No Spark here.

A lake is listed while workers write. What is found is nevertheless a state that it could have had: starts are listed
before what is under them, and a start appears only once everything before it is final (docs/decisions/spark-output.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from streamclient.errors import StreamClientException
from streamclient.spark.layout import FENCES, Edition, counting
from streamclient.spark.manifest import MANIFEST_NAME, Manifest
from streamclient.spark.publishing import Files

Directory = tuple[str, Manifest]
"""Path and manifest of one directory that is to be read."""

_STARTS = "_*shard=*/_*start=*"
_MARK = "edition="

_LISTINGS = 20
"""How often one start is listed before giving up: each further time needs another owner to have replaced what was
there, and owners change once in many seconds."""


def committed(files: Files, root: str) -> list[Directory]:
    """The directories to read, by path.

    Raises:
        StreamClientException: there is none, or they do not belong together.
    """
    found = editions(files, root) if files.names(f"{root}/{FENCES}") else old_layout(files, root)
    if not found:
        raise StreamClientException(f"no committed batch under {root}; FileSink writes {MANIFEST_NAME} into each")
    for what in ("prefix", "primary_key", "application"):
        values = {getattr(manifest, what) for _, manifest in found}
        if len(values) > 1:
            raise StreamClientException(f"{root} holds batches with different {what}: {sorted(values)}; read one table")
    return found


def old_layout(files: Files, root: str) -> list[Directory]:
    """The directories of a lake that was written before editions: one for each start, replaced in place."""
    found = []
    for name in files.find(root, f"{_STARTS}/{MANIFEST_NAME}"):
        text = files.read_text(f"{root}/{name}")
        if text is not None:
            found.append((f"{root}/{name}".rpartition("/")[0], Manifest.from_json(text, name)))
    return found


def editions(files: Files, root: str) -> list[Directory]:
    """The editions that count, of each start."""
    names: dict[str, list[str]] = defaultdict(list)
    for found in files.find(root, f"{_STARTS}/_*{_MARK}*"):
        start, _, name = found.rpartition("/")
        names[start].append(name)
    return [one for start in sorted(names) for one in _of_start(files, f"{root}/{start}", names[start])]


def _of_start(files: Files, start: str, names: Sequence[str]) -> list[Directory]:
    """Lists again if an edition was superseded, and removed, after it was listed."""
    for _ in range(_LISTINGS):
        present = {name: edition for name in names if (edition := Edition.parse(name.partition(_MARK)[2])) is not None}
        counted = set(counting(present.values()))
        paths = [f"{start}/{name}" for name, edition in sorted(present.items()) if edition in counted]
        texts = [files.read_text(f"{path}/{MANIFEST_NAME}") for path in paths]
        read = [(path, Manifest.from_json(text, path)) for path, text in zip(paths, texts, strict=True) if text]
        if len(read) == len(paths):
            return read
        names = files.names(start)
    raise StreamClientException(f"{start} was replaced {_LISTINGS} times while it was being read")
