"""Small files and directories of a lake, on whatever file system Spark writes to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attrs import define

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLAIN = re.compile(r"[A-Za-z0-9_.-]")


def escaped(text: str) -> str:
    """Text as a directory name, escaped as Spark does: its readers turn it back."""
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if _PLAIN.match(character):
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode())


@define
class LakeFiles:
    """Hadoop's file system of one path; local and HDFS rename a directory in one step."""

    _jvm: Any
    _system: Any

    @classmethod
    def of(cls, session: SparkSession, path: str) -> LakeFiles:
        """The file system that a path belongs to."""
        jvm: Any = session.sparkContext._jvm
        configuration = session.sparkContext._jsc.hadoopConfiguration()
        return cls(jvm, jvm.org.apache.hadoop.fs.Path(path).getFileSystem(configuration))

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        return bool(self._system.exists(self._path(path)))

    def read_text(self, path: str) -> str | None:
        """A whole file as UTF-8; ``None`` if there is none."""
        if not self.exists(path):
            return None
        stream = self._system.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Write a whole file as UTF-8, replacing it; makes the directories above."""
        stream = self._system.create(self._path(path), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with all in it; nothing happens if there is none."""
        self._system.delete(self._path(path), True)

    def replace(self, source: str, target: str) -> None:
        """Put a directory in the place of another. The target is absent for a moment, never half there."""
        self.delete(target)
        self._system.mkdirs(self._path(target).getParent())
        if not self._system.rename(self._path(source), self._path(target)):
            raise OSError(f"cannot rename {source} to {target}")

    def find(self, pattern: str) -> list[str]:
        """Paths that match a pattern with ``*``, in order."""
        found = self._system.globStatus(self._path(pattern))
        return sorted(status.getPath().toString() for status in found or ())

    def older_than(self, pattern: str, age_millis: int) -> list[str]:
        """Paths that match and were not modified for longer than an age, by the clock of this machine."""
        limit = self._jvm.java.lang.System.currentTimeMillis() - age_millis
        found = self._system.globStatus(self._path(pattern))
        return [status.getPath().toString() for status in found or () if status.getModificationTime() < limit]
