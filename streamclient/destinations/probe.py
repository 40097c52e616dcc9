"""A probe of whether a file system or object store refuses to create an object that already exists.

Exactly-once needs this refusal: if two writers create the same log entry, only one of them may succeed. A store that
does not refuse confirms the entry to both writers, and one of the two commits is lost without an error. delta-rs does
not notice the loss. So the probe creates a scratch object twice, by the same kind of request as for a log entry.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import format_datetime
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, urlsplit

from attrs import frozen

from streamclient.destinations.delta.object_stores import Location
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind

SCRATCH = "_streamclient_probe"
"""The directory of scratch objects in an object store, and the prefix of a scratch directory in a file system. Delta's
readers and clean-up ignore names that begin with ``_``."""

_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")

_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}

_TRIES_MAX = 100
"""The largest number of tries to make the scratch directory. Concurrent probes may cause a few failures in a row."""

_LOST = "acknowledged commits would get lost there without an error"


def probe_store(location: Location, seconds: float) -> None:
    """Check that the store of ``location`` refuses to create an object that exists.

    ``seconds`` is the time limit of each request.

    Amazon S3 itself, Azure, Google and HDFS are known to refuse, so they are not probed.

    Raises:
        ConfigurationError: the store creates the object twice, or cannot be probed.
        DependencyException: the store does not answer.
    """
    if location.scheme == "file":
        _probe_directory(Path(location.path))
    elif location.scheme == "oss":
        _probe_requests(location, _Oss.of(location), seconds)
    elif location.scheme in {"s3", "s3a"}:
        endpoint = location.option(
            "aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint"
        )
        host = urlsplit(endpoint).hostname or ""
        if endpoint and not host.endswith(_AMAZON):
            _probe_requests(location, _S3.of(location, endpoint), seconds)


def _probe_directory(directory: Path) -> None:
    scratch = directory / f"{SCRATCH}-{uuid.uuid4().hex}"  # unique, so that a probe removes only its own directory
    # The probe also removes the parent directories that it makes. An empty directory would block the table's path if a
    # user wanted to move the table's directory back.
    made = [folder for folder in (directory, *directory.parents) if not os.path.exists(folder)]
    source, target = scratch / "source", scratch / "target"
    _make(scratch, directory)
    try:
        source.touch()
        try:
            os.link(source, target)
        except OSError as error:
            raise ConfigurationError(
                f"{directory} is on a file system without hard links ({error}), which commits need: use another file "
                "system, or an object store"
            ) from error
        try:
            os.link(source, target)
        except FileExistsError:
            return
        raise ConfigurationError(f"{directory} is on a file system whose links replace existing files: {_LOST}")
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)
        scratch.rmdir()
        with suppress(OSError):  # another program has put a file into a directory
            for folder in made:
                folder.rmdir()


def _make(scratch: Path, directory: Path) -> None:
    """Make the scratch directory. Try again if another probe has removed one of its parent directories meanwhile."""
    for tries_left in reversed(range(_TRIES_MAX)):
        try:
            scratch.mkdir(parents=True)
            return
        except OSError as error:
            if not tries_left or not isinstance(error, FileNotFoundError):
                raise DependencyException(
                    f"{directory} cannot be written to: {error}", kind=ErrorKind.TRANSIENT
                ) from error


def _probe_requests(location: Location, store: _S3 | _Oss, seconds: float) -> None:
    name = "/".join(part for part in (location.path, SCRATCH, uuid.uuid4().hex) if part)
    try:
        first, text = store.send("PUT", name, seconds)
        if first not in {200, 201}:
            raise ConfigurationError(
                f"{location.url}: creating {name} gave HTTP {first}, so no commit would succeed: {text}"
            )
        second, text = store.send("PUT", name, seconds)
    finally:
        # The object may exist even if the store reported an error. If its removal fails, the object does no harm, so
        # only the result of the probe is reported.
        with suppress(DependencyException):
            store.send("DELETE", name, seconds)
    if second in {200, 201}:
        raise ConfigurationError(
            f"{location.url}: the store let one object be created twice, so {_LOST}. {store.advice}"
        )
    if second not in {409, 412}:
        raise ConfigurationError(
            f"{location.url}: creating {name} a second time gave HTTP {second}, not 409 or 412: {text}"
        )


@frozen
class _Keys:
    access: str
    secret: str
    token: str

    @classmethod
    def of(cls, location: Location, access: tuple[str, ...], secret: tuple[str, ...], token: tuple[str, ...]) -> _Keys:
        made = cls(location.option(*access), location.option(*secret), location.option(*token))
        if not made.access or not made.secret:
            raise ConfigurationError(
                f"{location.url}: a probe must find out whether the store refuses to create an object twice, and needs "
                f"the options {access[0]} and {secret[0]}"
            )
        return made


@frozen
class _S3:
    """A store with the interface of Amazon S3. Requests to it are signed by AWS Signature Version 4."""

    host: str
    prefix: str
    is_secure: bool
    region: str
    keys: _Keys
    advice = "It ignores If-None-Match: use a newer version of it, or another store."

    @classmethod
    def of(cls, location: Location, endpoint: str) -> _S3:
        parts = urlsplit(endpoint)
        keys = _Keys.of(
            location,
            ("aws_access_key_id", "access_key_id"),
            ("aws_secret_access_key", "secret_access_key"),
            ("aws_session_token", "aws_token", "session_token", "token"),
        )
        has_bucket = location.option("aws_virtual_hosted_style_request", "virtual_hosted_style_request") == "true"
        region = location.option("aws_region", "region", "aws_default_region") or "us-east-1"
        return cls(parts.netloc, "" if has_bucket else location.bucket + "/", parts.scheme == "https", region, keys)

    def send(self, method: str, name: str, seconds: float) -> tuple[int, str]:
        headers = {"host": self.host}
        if method == "PUT":
            headers["if-none-match"] = "*"
        if self.keys.token:
            headers["x-amz-security-token"] = self.keys.token
        path = "/" + quote(self.prefix + name, safe="/-_.~")
        signed = sign_s3(
            method, path, headers, access=self.keys.access, secret=self.keys.secret, region=self.region, at=_now()
        )
        return _exchange(self.host, method, path, signed, seconds, is_secure=self.is_secure)


@frozen
class _Oss:
    """A bucket of Alibaba Cloud OSS. Requests to it are signed by OSS Signature Version 1, as in delta-rs."""

    host: str
    prefix: str
    bucket: str
    is_secure: bool
    keys: _Keys
    advice = (
        "If the bucket has versioning, enabled or suspended, OSS ignores x-oss-forbid-overwrite: use a bucket that "
        "never had it."
    )

    @classmethod
    def of(cls, location: Location) -> _Oss:
        endpoint = location.option("opendal.endpoint")
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        keys = _Keys.of(
            location, ("opendal.access_key_id",), ("opendal.access_key_secret",), ("opendal.security_token",)
        )
        style = location.option("opendal.addressing_style") or "virtual"
        host = f"{location.bucket}.{parts.netloc}" if style == "virtual" else parts.netloc
        prefix = f"{location.bucket}/" if style == "path" else ""
        return cls(host, prefix, location.bucket, parts.scheme == "https", keys)

    def send(self, method: str, name: str, seconds: float) -> tuple[int, str]:
        headers = {"Date": format_datetime(_now(), usegmt=True)}
        if method == "PUT":
            headers["x-oss-forbid-overwrite"] = "true"
        if self.keys.token:
            headers["x-oss-security-token"] = self.keys.token
        headers["Authorization"] = sign_oss(
            method, f"/{self.bucket}/{name}", headers, self.keys.access, self.keys.secret
        )
        path = "/" + quote(self.prefix + name, safe="/-_.~")
        return _exchange(self.host, method, path, headers, seconds, is_secure=self.is_secure)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _exchange(
    host: str, method: str, path: str, headers: Mapping[str, str], seconds: float, *, is_secure: bool
) -> tuple[int, str]:
    kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
    connection = kind(host, timeout=seconds)
    try:
        connection.request(method, path, body=b"", headers=dict(headers))
        answer = connection.getresponse()
        status, text = answer.status, answer.read().decode("utf-8", "replace")[:300]
    except (OSError, http.client.HTTPException) as error:
        raise DependencyException(f"{host} does not answer: {error!r}", kind=ErrorKind.TRANSIENT) from error
    finally:
        connection.close()
    if status in _BUSY or (status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED):
        raise DependencyException(
            f"{host} is in trouble and answered HTTP {status}: {text}", kind=ErrorKind.TRANSIENT, http_status=status
        )
    return status, text


def sign_s3(
    method: str, path: str, headers: Mapping[str, str], *, access: str, secret: str, region: str, at: datetime
) -> dict[str, str]:
    """Sign a request without body and query by AWS Signature Version 4. Return all headers, with lower-case names."""
    stamp = at.strftime("%Y%m%dT%H%M%SZ")
    empty = hashlib.sha256(b"").hexdigest()
    signed = {**headers, "x-amz-content-sha256": empty, "x-amz-date": stamp}
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name].strip()}\n" for name in sorted(signed))
    request = f"{method}\n{path}\n\n{lines}\n{names}\n{empty}"
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    signed["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access}/{scope},SignedHeaders={names},Signature={signature}"
    )
    return signed


def sign_oss(method: str, resource: str, headers: Mapping[str, str], access: str, secret: str) -> str:
    """Sign a request by OSS Signature Version 1. Return the value of its ``Authorization`` header."""
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    own = "".join(f"{name}:{lower[name]}\n" for name in sorted(lower) if name.startswith("x-oss-"))
    plain = "\n".join(lower.get(name, "") for name in ("content-md5", "content-type", "date"))
    text = f"{method}\n{plain}\n{own}{resource}"
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha1).digest()
    return f"OSS {access}:{base64.b64encode(digest).decode()}"
