"""An object store on this machine, in memory, that speaks as much of S3 and of OSS as a Delta table needs.

Its mode is the one thing that a writer's life depends on: ``s3`` obeys ``If-None-Match: *`` with 412; ``oss`` refuses
that header with 501, as OSS does, and obeys ``x-oss-forbid-overwrite`` with 409, unless the bucket is versioned;
``ignore`` obeys neither, as some stores do. Faults are told for one kind of object, one per PUT, in order; by default
for commits, which are entries of the log.
Signatures are not checked.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from collections.abc import Iterable
from email.utils import formatdate
from enum import Enum
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

COMMIT = re.compile(r".*/_delta_log/\d{20}\.json")
PROBE = re.compile(r".*/_streamclient_probe/[0-9a-f]+")
MODIFIED = 1_700_000_000


class Fault(Enum):
    NONE = "answers truly"
    LOSE_ANSWER = "stores, and closes the connection without an answer"
    STORE_AND_FAIL = "stores, and answers 500"
    FAIL = "stores nothing, and answers 503"
    LOSE_REQUEST = "stores nothing, and closes the connection without an answer"


class ObjectStore:
    """Use as a context manager; any number of threads and processes may talk to it."""

    def __init__(self, mode: str = "s3") -> None:
        assert mode in {"s3", "oss", "ignore"}
        self.mode = mode
        self.is_versioned = False
        self.objects: dict[str, bytes] = {}
        self.faults: deque[Fault] = deque()
        self.failing = COMMIT
        """Which objects meet the faults."""
        self.met: list[Fault] = []
        """Faults that they have met."""
        self.denied: frozenset[str] = frozenset()
        """Kinds of requests that this writer has no right to, such as PUT."""
        self.requests: list[tuple[str, str]] = []
        self.authorizations: set[str] = set()
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def url(self, name: str) -> str:
        return f"{'oss' if self.mode == 'oss' else 's3'}://bucket/{name}"

    @property
    def options(self) -> dict[str, str]:
        if self.mode == "oss":
            return {
                "opendal.endpoint": self.endpoint,
                "opendal.access_key_id": "key",
                "opendal.access_key_secret": "secret",
                "opendal.addressing_style": "path",
            }
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ALLOW_HTTP": "true",
        }

    def fail_commits(self, faults: Iterable[Fault]) -> None:
        self.faults.extend(faults)

    def next_fault(self, key: str) -> Fault:
        if not self.failing.fullmatch(key):
            return Fault.NONE
        with self.lock:
            fault = self.faults.popleft() if self.faults else Fault.NONE
            self.met.append(fault)
            return fault

    def refusal(self, key: str, headers: Any) -> int:
        """Status with which a PUT is refused, or 0. Called under the lock, with which it also stores."""
        if self.mode == "oss":
            if headers.get("If-None-Match"):
                return 501
            forbidden = headers.get("x-oss-forbid-overwrite") == "true" and not self.is_versioned
            return 409 if forbidden and key in self.objects else 0
        return 412 if self.mode == "s3" and headers.get("If-None-Match") == "*" and key in self.objects else 0

    def __enter__(self) -> ObjectStore:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left before its answer is no fault of the store's."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _handler(store: ObjectStore) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.store = store
    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: ObjectStore

    def log_message(self, *_: object) -> None:
        pass

    def parsed(self) -> tuple[str, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        with self.store.lock:
            self.store.requests.append((self.command, key))
            self.store.authorizations.add((self.headers.get("Authorization") or "").split(" ")[0])
        return key, query, body

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.pop("length", None) or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status: int) -> None:
        code = {
            403: "AccessDenied",
            412: "PreconditionFailed",
            409: "FileAlreadyExists",
            404: "NoSuchKey",
            501: "NotImplemented",
        }
        name = code.get(status, "InternalError")
        self.answer(status, f"<Error><Code>{name}</Code><Message>{name}</Message></Error>".encode())

    def parse_request(self) -> bool:
        """Refuse the request that the writer has no right to, before anything of it is done."""
        if not super().parse_request():
            return False
        if self.command not in self.store.denied:
            return True
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.fail(403)
        return False

    def hang_up(self) -> None:
        self.close_connection = True

    def do_PUT(self) -> None:
        key, query, body = self.parsed()
        if "partNumber" in query:
            self.store.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return self.answer(200, ETag=_tag(body))
        fault = self.store.next_fault(key)
        if fault is Fault.FAIL:
            return self.fail(503)
        if fault is Fault.LOSE_REQUEST:
            return self.hang_up()
        with self.store.lock:
            refusal = self.store.refusal(key, self.headers)
            if not refusal:
                self.store.objects[key] = body
        if refusal:
            return self.fail(refusal)
        if fault is Fault.LOSE_ANSWER:
            return self.hang_up()
        if fault is Fault.STORE_AND_FAIL:
            return self.fail(500)
        return self.answer(200, ETag=_tag(body))

    def do_POST(self) -> None:
        key, query, body = self.parsed()
        if "delete" in query:
            with self.store.lock:
                names = [unescape(name.decode()) for name in re.findall(rb"<Key>(.*?)</Key>", body)]
                for name in names:
                    self.store.objects.pop(name, None)
            deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
            return self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        if "uploads" in query:
            upload = str(len(self.store.uploads))
            self.store.uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return self.answer(200, text.encode())
        parts = self.store.uploads.pop(query["uploadId"])
        with self.store.lock:
            self.store.objects[key] = b"".join(parts[number] for number in sorted(parts))
        return self.answer(200, b'<CompleteMultipartUploadResult><ETag>"x"</ETag></CompleteMultipartUploadResult>')

    def do_DELETE(self) -> None:
        key, _, _ = self.parsed()
        with self.store.lock:
            self.store.objects.pop(key, None)
        self.answer(204)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        key, query, _ = self.parsed()
        if not key:
            return self.listing(query)
        body = self.store.objects.get(key)
        if body is None:
            return self.fail(404)
        headers = {"ETag": _tag(body), "Last_Modified": formatdate(MODIFIED, usegmt=True)}
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if match is None:
            return self.answer(200, body, **headers)
        first = int(match[1]) if match[1] else len(body) - int(match[2])
        last = min(int(match[2]) if match[1] and match[2] else len(body) - 1, len(body) - 1)
        return self.answer(206, body[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(body)}", **headers)

    def listing(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("start-after", "")
        with self.store.lock:
            keys = sorted(key for key in self.store.objects if key.startswith(prefix) and key > after)
            sizes = {key: len(self.store.objects[key]) for key in keys}
        found, prefixes = [], set()
        for key in keys:
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                found.append(key)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{sizes[key]}</Size><ETag>&quot;x&quot;</ETag>"
            "<LastModified>2023-11-14T22:13:20.000Z</LastModified></Contents>"
            for key in found
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(prefixes))
        text = (
            f"<ListBucketResult><Name>bucket</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount>"
            f"<MaxKeys>1000000</MaxKeys><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
        )
        self.answer(200, text.encode(), Content_Type="application/xml")


def _tag(body: bytes) -> str:
    return f'"{md5(body).hexdigest()}"'
