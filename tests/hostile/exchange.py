"""Requests and answers as the proxy has them: read, changed, and sealed again with the secret of the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from attrs import define, evolve, field, frozen

from streamclient.errors import CodecError
from streamclient.records import SequenceInfo
from streamclient.server.iterators import decode_iterator
from streamclient.wire import schema, signature
from streamclient.wire.record_decoding import default_codec

KEPT_HEADERS = ("x-ots-", "authorization")
"""What an answer keeps of the honest head; length and connection are the proxy's own."""


@frozen
class Request:
    """What a client asked."""

    operation: str
    body: bytes
    is_kept: bool
    """Whether its connection was used before."""

    @property
    def table(self) -> str:
        """The table that a request for rows names; empty for all others."""
        known = schema.OPERATIONS.get(self.operation)
        if known is None:
            return ""
        message = schema.parse(known.request, self.body)
        tables = getattr(message, "tables", None)
        return str(tables[0].table_name if tables else getattr(message, "table_name", ""))


@frozen
class Reply:
    """What a service answers."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def head(self, *more: str) -> bytes:
        """The head with these lines beside the service's own."""
        own = [f"{name}: {value}" for name, value in self.headers.items() if name.lower().startswith(KEPT_HEADERS)]
        return "\r\n".join([f"HTTP/1.1 {self.status} Hostile", *own, *more, "", ""]).encode("latin-1")

    def whole(self) -> bytes:
        """Head and body, as they should be."""
        return self.head(f"Content-Length: {len(self.body)}") + self.body


@frozen
class Sealer:
    """Signs answers as the service does."""

    key_id: str
    secret: str

    def seal(self, operation: str, body: bytes, *, status: int = 200, digest_of: bytes | None = None) -> Reply:
        """A signed answer; ``digest_of`` are the bytes whose digest it tells, by default its own."""
        path = f"/{operation}"
        headers = {
            "x-ots-contentmd5": signature.content_md5(body if digest_of is None else digest_of),
            "x-ots-contenttype": "protocol buffer",
            "x-ots-date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "x-ots-requestid": "hostile",
        }
        signed = signature.sign_response(self.secret, path, headers)
        return Reply(status, {**headers, "Authorization": signature.authorization(self.key_id, signed)}, body)


@frozen
class Paging:
    """How the pages of an operation name their list, the position that is asked for, and the one to go on from."""

    request: Any
    response: Any
    list_of: Callable[[Any], str]
    asked: str
    items: str
    following: str


def _paging(operation: str, list_of: Callable[[Any], str], asked: str, items: str, following: str) -> Paging:
    known = {**schema.OPERATIONS, **schema.TUNNEL_OPERATIONS}[operation]
    return Paging(known.request, known.response, list_of, asked, items, following)


PAGINGS = {
    "GetStreamRecord": _paging(
        "GetStreamRecord",
        lambda asked: decode_iterator(asked.shard_iterator).shard_id,
        "shard_iterator",
        "stream_records",
        "next_shard_iterator",
    ),
    "tunnel/readrecords": _paging(
        "tunnel/readrecords", lambda asked: str(asked.channel_id), "token", "records", "next_token"
    ),
    "GetRange": _paging(
        "GetRange",
        lambda asked: str(asked.table_name),
        "inclusive_start_primary_key",
        "rows",
        "next_start_primary_key",
    ),
    "DescribeStream": _paging(
        "DescribeStream",
        lambda asked: str(asked.stream_id),
        "inclusive_start_shard_id",
        "shards",
        "next_shard_id",
    ),
}


@frozen
class PageSeen:
    """A page of a list, as the service gave it."""

    operation: str
    list_id: str
    asked: Any
    count: int
    body: bytes
    message: Any = field(repr=False)
    paging: Paging = field(repr=False)

    @classmethod
    def of(cls, request: Request, body: bytes) -> PageSeen | None:
        """``None`` for what is no page, or no answer."""
        paging = PAGINGS.get(request.operation)
        if paging is None:
            return None
        try:
            asked = schema.parse(paging.request, request.body)
            message = schema.parse(paging.response, body)
        except CodecError:
            return None
        items = getattr(message, paging.items)
        count = len(items) if not isinstance(items, bytes) else bool(items)
        return cls(request.operation, paging.list_of(asked), getattr(asked, paging.asked), count, body, message, paging)

    def going_to(self, position: Any) -> bytes:
        """The same items, and another position to go on from; ``None`` for none."""
        changed = self.paging.response()
        changed.CopyFrom(self.message)
        if position is None:
            changed.ClearField(self.paging.following)
        else:
            setattr(changed, self.paging.following, position)
        return bytes(changed.SerializePartialToString())

    @property
    def following(self) -> Any:
        """The position to go on from."""
        return getattr(self.message, self.paging.following)

    def cut(self, count: int) -> bytes:
        """The bytes up to the end of an item, as if those after it had not come."""
        changed = self.paging.response()
        changed.CopyFrom(self.message)
        items = getattr(changed, self.paging.items)
        if not isinstance(items, bytes):
            del items[count:]
        after = (
            {"may_more_record", "consumed"} if self.operation in ("GetStreamRecord", "tunnel/readrecords") else set()
        )
        for name in {self.paging.following, *after}:
            changed.ClearField(name) if name in changed.DESCRIPTOR.fields_by_name else None
        return bytes(changed.SerializePartialToString())

    @property
    def sequences(self) -> tuple[SequenceInfo, SequenceInfo] | None:
        """Those of its first and last record; ``None`` for what has none."""
        if not self.count or self.operation not in ("GetStreamRecord", "tunnel/readrecords"):
            return None
        codec = default_codec()
        is_stream = self.operation == "GetStreamRecord"
        page = codec.decode_page(self.body) if is_stream else codec.decode_tunnel_page(self.body)
        return page.records[0].sequence_info, page.records[-1].sequence_info


@define
class PageHistory:
    """Pages with items that the service gave, list by list, each position once. The proxy's lock guards it."""

    _pages: dict[tuple[str, str], dict[Any, PageSeen]] = field(factory=dict)

    def note(self, page: PageSeen) -> None:
        """Remember a page."""
        if page.count:
            self._pages.setdefault((page.operation, page.list_id), {}).setdefault(page.asked, page)

    def before(self, page: PageSeen) -> list[PageSeen]:
        """Pages of the same list that came before this one, oldest first."""
        known = self._pages.get((page.operation, page.list_id), {})
        earlier = []
        for position, other in known.items():
            if position == page.asked:
                break
            earlier.append(other)
        return earlier

    def first(self, page: PageSeen) -> PageSeen | None:
        """The first page of the same list, by time."""
        return next(iter(self._pages.get((page.operation, page.list_id), {}).values()), None)

    def elsewhere(self, page: PageSeen) -> PageSeen | None:
        """A page of another list whose records are all older than the last one before this page."""
        earlier = self.before(page)
        last = earlier[-1].sequences if earlier else None
        if last is None:
            return None
        for (operation, list_id), pages in self._pages.items():
            if operation == page.operation and list_id != page.list_id:
                for other in pages.values():
                    sequences = other.sequences
                    if sequences is not None and sequences[1] < last[1]:
                        return other
        return None


def sealed_like(reply: Reply, sealer: Sealer, operation: str, body: bytes) -> Reply:
    """The honest answer with another body, signed for it."""
    made = sealer.seal(operation, body)
    return evolve(reply, headers=made.headers, body=body)
