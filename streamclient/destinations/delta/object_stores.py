"""Checks of a Delta table's location, options and properties, and the opening of a table.

Exactly-once depends on one property of the store: if two writers create the same object, the store refuses the second.
The stores in ``SCHEMES`` do so, unless an option switches the refusal off. Other stores, options and properties could
lose rows silently, so these checks reject them with a message.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from attrs import frozen

from streamclient.base.extras import load
from streamclient.destinations.delta.partitions import Partition
from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from deltalake import DeltaTable

PROPERTIES = {"delta.enableExpiredLogCleanup": "false"}
"""The properties that every table must have. They forbid delta-rs to remove log entries, because the log proves which
rows were committed. Only ``maintenance.clean`` removes log entries, after it has repeated the last commits in a new
entry."""

SCHEMES = ("file", "s3", "s3a", "abfs", "abfss", "az", "gs", "hdfs", "oss")
"""The schemes of stores on which a single request of delta-rs creates a log entry only if the entry is absent. On other
stores delta-rs first checks and later writes, so one of two writers may overwrite the other's entry."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")

_REASONS = {
    "aws_s3_allow_unsafe_rename": "it is meant for stores without create-if-absent, where commits get lost",
    "allow_unsafe_rename": "it is meant for stores without create-if-absent, where commits get lost",
    "mount_allow_unsafe_rename": "it replaces create-if-absent by a rename, which loses commits",
    "aws_s3_locking_provider": "the writer has no lock provider, so it would go on without the lock",
    "locking_provider": "the writer has no lock provider, so it would go on without the lock",
    "aws_conditional_put": "only 'etag' refuses the second of two writers",
    "conditional_put": "only 'etag' refuses the second of two writers",
    "opendal.enable_versioning": "a versioned bucket does not refuse the second of two writers, so commits get lost",
}
_HARMLESS = {"aws_conditional_put": {"etag"}, "conditional_put": {"etag"}}
_ENVIRONMENT = {"file": "MOUNT_", "s3": "AWS_", "s3a": "AWS_"}
"""For each scheme of a store, the prefix of the environment variables that delta-rs reads as options."""
_OFF = {"", "false", "0", "no", "off", "f", "n"}

_PASSING = ("not found",)
"""Texts in error messages of delta-rs after which ``open_table`` tries again. A clean-up may have removed a file after
delta-rs had listed the log."""
_PASSING_HERE = ("does not exist", "is not a directory")
"""Texts in error messages of delta-rs after which ``open_table`` tries again for a local table. Another handle may be
making the directory, or a probe may be removing it."""
_PAUSES = (0.0, 0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.2, 0.2, 0.2)
"""The pauses between the tries to open a table, in seconds. An error that lasts longer than all pauses together is not
the effect of a concurrent clean-up."""

_MISREAD = {
    "file": re.compile(r"[\x00-\x1f\x7f\[\]^|\\]|%[0-9A-Fa-f]{2}"),
    "oss": re.compile(r"[^\w/.+=!'()@:,;&$-]", re.ASCII),
}
"""For each scheme of a store, the characters in a path that delta-rs misreads. delta-rs aborts at some of these
characters. It decodes others as an escape, or escapes them twice, and later looks for the rows at a wrong path."""
_MISREAD_ELSEWHERE = re.compile(r"[\x00-\x1f\x7f\[\]^|\\]")

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|millis|seconds?|minutes?)\s*")
_UNITS = {
    "ms": 0.001,
    "millis": 0.001,
    "s": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
}


@frozen
class Location:
    """The address of a Delta table, and the options with which delta-rs opens it."""

    url: str
    scheme: str
    options: dict[str, str]

    def option(self, *names: str) -> str:
        """Return the value of the first of the options ``names`` that is set; the empty text if no option is set.

        A name in ``options`` wins over an environment variable.
        """
        lower = {name.lower(): value for name, value in self.options.items()}
        for name in names:
            if name in lower:
                return lower[name]
        return next((os.environ[name.upper()] for name in names if name.upper() in os.environ), "")

    @property
    def path(self) -> str:
        """The table's directory: a local path, or the path in the bucket without slashes at the ends."""
        if self.scheme == "file":
            return unquote(urlsplit(self.url).path) if self.url.startswith("file:") else self.url
        return unquote(urlsplit(self.url).path).strip("/")

    def log_identity(self) -> object:
        """Return a value that changes if a local table's log directory is moved or replaced; ``None`` for a store."""
        if self.scheme != "file":
            return None
        try:
            found = os.stat(Path(self.path, "_delta_log"))
        except OSError:
            return ()
        return found.st_dev, found.st_ino

    @property
    def bucket(self) -> str:
        """The name of the store's bucket or container; empty for a local directory."""
        return urlsplit(self.url).netloc


def check_location(url: str, options: Mapping[str, str] | None, answer_seconds: float) -> Location:
    """Check a table's address and options, without a request to the store. Return them as a ``Location``.

    Args:
        url: a directory, or an address with one of ``SCHEMES``.
        options: the options for delta-rs.
        answer_seconds: the largest allowed value, in seconds, of delta-rs' options ``retry_timeout`` and ``timeout``.
            It is also their default.

    Raises:
        ConfigurationError: commits could be lost at this address or with these options, or delta-rs would misread the
            path.
    """
    scheme = _scheme(url)
    given = {str(name): str(value) for name, value in (options or {}).items()}
    _refuse_unsafe(given, "option")
    if prefix := _ENVIRONMENT.get(scheme):
        _refuse_unsafe(
            {name: value for name, value in os.environ.items() if name.startswith(prefix)},
            "environment variable",
        )
    _refuse_long_waits(given, answer_seconds)
    if scheme not in {"file", "hdfs"}:
        given = {"retry_timeout": f"{answer_seconds:g}s", "timeout": f"{answer_seconds:g}s"} | given
    location = Location(url, scheme, given)
    _refuse_misread(location)
    if scheme == "file":
        _refuse_files(location)
    elif scheme != "hdfs" and not location.bucket:
        raise ConfigurationError(f"{url} names no bucket or container: write {scheme}://BUCKET/PATH")
    endpoint = location.option("aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint")
    if scheme in {"s3", "s3a"} and "aliyuncs.com" in endpoint:
        raise ConfigurationError(
            f"OSS does not accept S3's create-if-absent, so no commit to {url} would succeed: write oss:// instead of "
            f"{scheme}://, with the options opendal.endpoint, opendal.access_key_id and opendal.access_key_secret"
        )
    if scheme == "oss" and not location.option("opendal.endpoint"):
        raise ConfigurationError(
            f"{url} needs the option opendal.endpoint, for example https://oss-cn-hangzhou.aliyuncs.com"
        )
    return location


def _scheme(url: str) -> str:
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else "file"
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"{url}: a table at {scheme}:// cannot be written exactly once, because that store is not known to refuse "
            f"the second of two writers; use a directory or one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
        )
    return scheme


def _refuse_misread(location: Location) -> None:
    path = os.path.abspath(location.path) if location.scheme == "file" else location.path
    misread = _MISREAD.get(location.scheme, _MISREAD_ELSEWHERE).search(path)
    if misread:
        raise ConfigurationError(
            f"{location.url}: delta-rs misreads {misread[0]!r} in the path {path!r}, and would not find its own files "
            "there; use another name"
        )


def _refuse_files(location: Location) -> None:
    """Refuse a table whose path is a file. If the path does not exist, its nearest existing parent must not be a file.

    Each path is examined by a single call, because other handles may make or remove directories meanwhile.
    """
    path = Path(os.path.abspath(location.path))
    for folder in (path, *path.parents):
        try:
            mode = os.stat(folder).st_mode
        except OSError:
            continue
        if not stat.S_ISDIR(mode):
            raise ConfigurationError(
                f"{location.url}: {folder} is a file, and a table is a directory: name a directory that exists or can "
                "be made"
            )
        return


def _refuse_unsafe(options: Mapping[str, str], what: str) -> None:
    for name, value in options.items():
        reason = _REASONS.get(name.lower())
        if reason and value.lower() not in _HARMLESS.get(name.lower(), _OFF):
            raise ConfigurationError(f"{what} {name}={value} is refused: {reason}; remove it")


def _refuse_long_waits(options: Mapping[str, str], answer_seconds: float) -> None:
    for name, value in options.items():
        if name.lower() not in {"retry_timeout", "timeout"}:
            continue
        match = _DURATION.fullmatch(value)
        seconds = float(match[1]) * _UNITS[match[2]] if match else None
        if seconds is None or seconds > answer_seconds:
            raise ConfigurationError(
                f"option {name}={value} must be a time such as '10s' of at most answer_seconds, here "
                f"{answer_seconds:g}s: a commit that waits longer than its lease lasts comes too late"
            )


def open_table(location: Location, *, version: int | None = None, is_awaited: bool = False) -> DeltaTable:
    """Open ``version`` of a table, by default the newest. After errors that may be transient, try again.

    Such errors come from other handles that create the table or clean its log. With ``is_awaited``, the call also tries
    again while the log's directory exists without the table. All tries together take about one second.
    """
    errors = load("deltalake.exceptions", "delta")
    moment = [*_PASSING, *(_PASSING_HERE if location.scheme == "file" else ())]
    for pause in (*_PAUSES, None):
        try:
            handle: DeltaTable = load("deltalake", "delta").DeltaTable(
                location.url, version=version, storage_options=dict(location.options) or None
            )
            return handle
        except errors.DeltaError as error:
            if isinstance(error, errors.TableNotFoundError):
                is_passing = is_awaited and bool(location.log_identity())
            else:
                is_passing = any(words in str(error) for words in moment)
            if not is_passing or pause is None:
                raise
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def check_table(handle: DeltaTable) -> None:
    """Refuse a table with properties by which rows or commits could be lost.

    Raises:
        ConfigurationError: a property is wrong or missing. The message names the property and the remedy.
    """
    metadata = handle.metadata()
    refuse_reading(metadata.configuration, handle.table_uri)
    if "delta.setTransactionRetentionDuration" in metadata.configuration:
        raise ConfigurationError(
            f"{handle.table_uri} has the property delta.setTransactionRetentionDuration, by which it forgets its "
            "commits: remove the property, or write to another table"
        )
    for name, value in PROPERTIES.items():
        if metadata.configuration.get(name) != value:
            raise ConfigurationError(
                f"{handle.table_uri} needs the property {name}={value}; without it the log, with the commits, "
                f"is cleared by others: DeltaTable(...).alter.set_table_properties({{{name!r}: {value!r}}})"
            )


def check_partition(handle: DeltaTable, partition: Partition | None) -> None:
    """Refuse to write to a table that is not partitioned by ``partition`` (``None``: not partitioned).

    Raises:
        ConfigurationError: the table is partitioned differently.
    """
    metadata, wanted = handle.metadata(), [partition.column] if partition else []
    if list(metadata.partition_columns) != wanted:
        raise ConfigurationError(
            f"{handle.table_uri} is partitioned by {list(metadata.partition_columns)}, not by {wanted}: use "
            "the partition_by with which the table was created"
        )


def refuse_reading(configuration: Mapping[str, str | None], url: str) -> None:
    """Refuse a table whose rows cannot be read from its data files alone.

    Raises:
        ConfigurationError: by its properties ``configuration``, the table has deletion vectors or mapped columns.
    """
    if configuration.get("delta.enableDeletionVectors") == "true":
        raise ConfigurationError(
            f"{url} has deletion vectors. Readers of its files alone do not know these, and would show deleted rows: "
            "set delta.enableDeletionVectors to false and rewrite the table, or use another one"
        )
    if (configuration.get("delta.columnMapping.mode") or "none") != "none":
        raise ConfigurationError(
            f"{url} has mapped column names. Readers of its files alone would miss these columns: use another table"
        )
