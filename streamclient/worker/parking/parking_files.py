"""Parked records in a directory: one append-only file of JSON lines per shard.

Laws:

* A line is written whole and synchronised to the disk before ``park`` returns. Bytes after the last line feed come from
  an interrupted write; the next write cuts these bytes off.
* A line ``{"parked": {...}}`` parks a record, and a line ``{"removed": "<record id>"}`` removes the record. A file
  without parked records is emptied. A line of a later version has the additional member ``format``.
* Files are locked while they are read or written, so processes of one machine may share the directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from streamclient.base import checks, locks
from streamclient.base.kept_formats import FORMAT_MEMBER, parse_json
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedRecord
from streamclient.worker.parking.parked_documents import document_of, parked_of
from streamclient.worker.parking.parked_fleets import fleet_of, require_own
from streamclient.worker.parking.parked_frames import PARKED_FORMAT

SUFFIX = ".jsonl"


@checks.explains_names
class FileParkingStore(IParkingStore):
    """A parking store in files ``<directory>/<stream id>/<shard id>.jsonl``. Safe for threads and for processes.

    The store suits workers on one machine, or on a shared file system with working locks. Other fleets need a store
    that all workers reach, such as ``TableParkingStore``. Fleets of different streams may share a directory. Each fleet
    of one stream needs a directory of its own; another fleet is refused. Each call reads the whole file of the shard,
    and ``park`` reads all files of the stream, so the store suits thousands of records, not millions.

    Args:
        directory: the path of the directory, which is made if it does not exist.

    Raises:
        ConfigurationError: the path is not a directory, and no directory can be made there.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(checks.path.require("directory", directory))
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{self._directory} cannot be a directory of parked records: {error}") from error

    def park(self, records: Sequence[ParkedRecord]) -> None:
        """Append the records that the store does not have yet, and return once they are on the disk.

        Raises:
            ConfigurationError: another fleet has parked records of the stream. If it did so at the same time, the
                records may have been stored.
        """
        self._require_own(records)
        for path, group in self._by_file(records):
            with _locked(path) as file:
                known = _read(path, file)
                require_own(fleet_of(group, group[0].stream_id), known.values(), self)
                lines = [{"parked": document_of(parked)} for parked in group if parked.record_id not in known]
                _append(path, file, lines)
        self._require_own(records)

    def _require_own(self, records: Sequence[ParkedRecord]) -> None:
        for stream_id in sorted({parked.stream_id for parked in records if parked.fleet}):
            require_own(fleet_of(records, stream_id), self.parked(stream_id), self)

    def parked(self, stream_id: str | None = None) -> Iterable[ParkedRecord]:
        """Yield the parked records, file by file.

        Raises:
            StreamClientException: a file holds a line that this store did not write; the message names file and line.
        """
        for path in self._files(stream_id):
            with _locked(path, only_reads=True) as file:
                known = _read(path, file)
            yield from (known[key] for key in sorted(known))

    def remove(self, records: Sequence[ParkedRecord]) -> None:
        """Append lines that remove ``records``, or empty a file in which no record is left."""
        for path, group in self._by_file(records):
            if not path.exists():
                continue
            with _locked(path) as file:
                known = _read(path, file)
                gone = [parked.record_id for parked in group if parked.record_id in known]
                if gone and len(gone) == len(known):
                    file.truncate(0)
                    _synchronise(path, file)
                else:
                    _append(path, file, [{"removed": record_id} for record_id in gone])

    def still_parked(self, records: Sequence[ParkedRecord]) -> Sequence[ParkedRecord]:
        """Return those of ``records`` that are parked now, in the same order. Only the files of their shards are read.

        Raises:
            StreamClientException: a file holds a line that this store did not write; the message names file and line.
        """
        present: set[tuple[str, str, str]] = set()
        for path, group in self._by_file(records):
            if path.exists():
                with _locked(path, only_reads=True) as file:
                    present.update((*_shard(group[0]), record_id) for record_id in _read(path, file))
        return [parked for parked in records if (*_shard(parked), parked.record_id) in present]

    def _by_file(self, records: Sequence[ParkedRecord]) -> Iterator[tuple[Path, list[ParkedRecord]]]:
        unique = {(parked.stream_id, parked.shard_id, parked.record_id): parked for parked in records}
        ordered = sorted(unique.values(), key=_shard)
        for (stream_id, shard_id), group in groupby(ordered, _shard):
            yield self._directory / _name(stream_id) / f"{_name(shard_id)}{SUFFIX}", list(group)

    def _files(self, stream_id: str | None) -> list[Path]:
        pattern = "*" if stream_id is None else _name(stream_id)
        paths = self._directory.glob(f"{pattern}/*{SUFFIX}")
        return sorted(paths, key=lambda path: (unquote(path.parent.name), unquote(path.stem)))

    def __repr__(self) -> str:
        return f"FileParkingStore({str(self._directory)!r})"


def _shard(parked: ParkedRecord) -> tuple[str, str]:
    return parked.stream_id, parked.shard_id


def _name(identifier: str) -> str:
    """Return a file name for an id of any characters. Dots are encoded, because a leading dot would hide the file."""
    return quote(identifier, safe="").replace(".", "%2E")


@contextmanager
def _locked(path: Path, *, only_reads: bool = False) -> Iterator[BinaryIO]:
    if not only_reads:
        path.parent.mkdir(exist_ok=True)
    with path.open("rb" if only_reads else "ab+", buffering=0) as file, locks.locked(file, shared=only_reads):
        yield file


def _read(path: Path, file: BinaryIO) -> dict[str, ParkedRecord]:
    """Return the parked records of a file, by record id; bytes after the last line feed do not count."""
    file.seek(0)
    known: dict[str, ParkedRecord] = {}
    for number, line in enumerate(_whole(file.read()).splitlines(), 1):
        try:
            document = parse_json(line)
            if problem := PARKED_FORMAT.problem(document.get(FORMAT_MEMBER)):
                raise StreamClientException(f"{path}, line {number}: {problem}")
            if "removed" in document:
                known.pop(document["removed"], None)
            else:
                parked = parked_of(document["parked"])
                known[parked.record_id] = parked
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StreamClientException(f"{path}, line {number}: {error}; repair or remove the line") from error
    return known


def _whole(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _append(path: Path, file: BinaryIO, documents: Sequence[object]) -> None:
    if not documents:
        return
    file.seek(0)
    end = len(_whole(file.read()))
    file.truncate(end)
    data = b"".join(json.dumps(document, ensure_ascii=False).encode() + b"\n" for document in documents)
    try:
        _write_all(file.write, data)
    except OSError:
        file.truncate(end)
        raise
    _synchronise(path, file)


def _write_all(write: Callable[[memoryview], int | None], data: bytes) -> None:
    """Write all of ``data``. A single write to an unbuffered file may write only a part."""
    left = memoryview(data)
    while left:
        left = left[write(left) or 0 :]


def _synchronise(path: Path, file: BinaryIO) -> None:
    """Write the file through to the disk, and also its directory and the directory above that.

    Both directories may have new entries.
    """
    os.fsync(file.fileno())
    if os.name == "nt":  # Windows cannot open directories, and its file systems keep names in a journal
        return
    for directory in (path.parent, path.parent.parent):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
