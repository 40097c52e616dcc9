"""Small files and directories of a lake, on whatever file system Spark writes to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attrs import define

from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RENAMING_SCHEMES = ("file", "hdfs", "webhdfs", "swebhdfs", "viewfs", "abfs", "abfss")
"""File systems that rename a directory in one step; ABFS does with a hierarchical namespace."""

_OSS_HDFS = re.compile(r"oss://[^/]+\.oss-dls\.aliyuncs\.com(?:/|$)", re.IGNORECASE)
"""OSS-HDFS by its full name. A bucket alone may be one of OSS without directories."""

# A scheme of one letter would be a drive of Windows.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")

_GLOB_CHARACTERS = re.compile(r"([\\{}\[\]*?^])")


def check_renames(path: str) -> None:
    """See to it that a lake may be at a path or address: that directories are renamed in one step there.

    A path without a scheme is let through: whose it is shows when Spark's default file system is known.

    Raises:
        ConfigurationError: they are not, as on stores of objects, or that is not known.
    """
    found = _SCHEME.match(path)
    if found is None or found[1].lower() in RENAMING_SCHEMES or _OSS_HDFS.match(path):
        return
    oss = "; OSS-HDFS is taken by its full name, oss://BUCKET.REGION.oss-dls.aliyuncs.com/"
    raise ConfigurationError(
        f"FileSink cannot write exactly once to {path}: it needs a file system that renames a directory in one step, "
        f"and {found[1]}:// is not known to do that. Stores of objects copy file by file, so that readers see half a "
        "batch, and a crash leaves it there. Use a local path or one of "
        f"{', '.join(f'{scheme}://' for scheme in RENAMING_SCHEMES[1:])}, or write a Delta or Iceberg table with "
        f"streamclient.destinations{oss if found[1].lower() == 'oss' else ''}"
    )


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

    def address(self, path: str) -> str:
        """A path behind the scheme and host of Spark's default file system, if it names none itself."""
        return path if _SCHEME.match(path) else f"{self._system.getUri().toString()}{path}"

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def names(self, path: str) -> list[str]:
        """Names in a directory, sorted; none if there is no such directory."""
        return self.find(path, "*")

    def find(self, path: str, pattern: str) -> list[str]:
        """What matches a pattern with ``*`` below a directory, relative to it and sorted.

        A level is listed before the ones below it.
        """
        found = self._matches(path, pattern)
        if not found:
            return []
        # One call for all: each call into Java takes a third of a millisecond, and a lake has many directories.
        paths = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(found)
        text = str(self._jvm.org.apache.commons.lang3.ArrayUtils.toString(paths))
        base = f"{self._system.makeQualified(self._path(path)).toString()}/"
        return sorted(text[1:-1].removeprefix(base).split(f",{base}"))

    def _matches(self, path: str, pattern: str) -> Any:
        literal = _GLOB_CHARACTERS.sub(r"\\\1", path)
        return self._system.globStatus(self._path(f"{literal}/{pattern}"))

    def read_text(self, path: str) -> str | None:
        """A whole file as UTF-8; ``None`` if there is none."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

        try:
            stream = self._system.open(self._path(path))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.io.FileNotFoundException":
                raise
            return None
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

    def rename(self, source: str, target: str) -> None:
        """Move a directory in one step to a name that is free; makes the directories above.

        Raises:
            OSError: the target is there, or the source is not.
        """
        # Hadoop would move into a target that is there; names of editions are never used twice, so this sees a mistake.
        if self._system.exists(self._path(target)) or not self._system.exists(self._path(source)):
            raise OSError(f"cannot rename {source} to {target}: the target exists, or the source does not")
        self._system.mkdirs(self._path(target).getParent())
        if not self._system.rename(self._path(source), self._path(target)):
            raise OSError(f"cannot rename {source} to {target}")

    def older_than(self, path: str, age_millis: int) -> list[str]:
        """What a directory holds and was not modified for longer than an age, by the clock of this machine."""
        limit = self._jvm.java.lang.System.currentTimeMillis() - age_millis
        found = self._matches(path, "*")
        return [status.getPath().toString() for status in found or () if status.getModificationTime() < limit]
