"""The table of hostile answers: what is played, where, to whom, for how long, and what must follow.

Read it as a page. ``ANSWERS`` says what comes in place of an honest answer, ``PLACES`` which request it is given to,
``CONSUMERS`` which of these requests a consumer makes. The rules at the end leave out combinations that mean nothing.

What must follow is one law for all cases: nothing is lost, nothing is delivered twice because of it, each key is in
order, the consumer ends with all records, and trouble that outlasts its patience is named with its cause. ``ENDS``
lists the exceptions: cases that may end with an error which names the trouble, after which the consumer is started
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cache
from itertools import product

from attrs import frozen

from streamclient.tablestore import Integrity
from tests.hostile.cases import chosen


class Kind(Enum):
    """What a place answers with."""

    PAGE = "a page: a part of a list, and where the list goes on"
    LISTING = "a listing of shards"
    VALUE = "anything else"


@frozen
class Place:
    """A kind of request."""

    operation: str
    table: str = ""
    """``data`` or ``status``: the role of the table that a request for rows names."""
    kind: Kind = Kind.VALUE
    has_choice: bool = False
    """Whether the client's ``Integrity`` decides what vouches for the answer. All other answers have their digest."""

    is_empty: bool = False
    """Whether the honest answer has no bytes, so that none can be missing."""

    def __str__(self) -> str:
        return f"{self.operation} {self.table}".replace("tunnel/", "tunnel ").strip()


RECORDS = Place("GetStreamRecord", kind=Kind.PAGE, has_choice=True)
ITERATOR = Place("GetShardIterator")
SHARDS = Place("DescribeStream", kind=Kind.LISTING)
STREAMS = Place("ListStream")
DATA_TABLE = Place("DescribeTable", "data")
STATUS_TABLE = Place("DescribeTable", "status")
ROW = Place("GetRow", "status")
ROWS = Place("GetRange", "status")
SOME_ROWS = Place("BatchGetRow", "status")
PUT = Place("PutRow", "status")
BATCH = Place("BatchWriteRow", "status")
COPY = Place("GetRange", "data", kind=Kind.PAGE)
CONNECT = Place("tunnel/connect")
HEARTBEAT = Place("tunnel/heartbeat")
FIND = Place("tunnel/getcheckpoint")
CHANNEL = Place("tunnel/readrecords", kind=Kind.PAGE, has_choice=True)
STORE = Place("tunnel/checkpoint", is_empty=True)
TUNNEL_STATE = Place("tunnel/describe")

PLACES = (
    *(RECORDS, ITERATOR, SHARDS, STREAMS, DATA_TABLE, STATUS_TABLE, ROW, ROWS, SOME_ROWS, PUT, BATCH, COPY),
    *(CONNECT, HEARTBEAT, FIND, CHANNEL, STORE, TUNNEL_STATE),
)


@frozen
class Answer:
    """What comes in place of the honest answer; ``tests.hostile.answers`` has the bytes."""

    name: str
    does: str
    at: frozenset[Kind] = frozenset(Kind)
    needs_tls: bool = False
    lasts: bool = True
    """Whether it may go on until it is named. Others are no outage, however long they last."""
    is_done: bool = True
    """Whether the service does what is asked, before the answer goes wrong."""

    def __str__(self) -> str:
        return self.name


_PAGES = frozenset({Kind.PAGE})
_LISTS = frozenset({Kind.PAGE, Kind.LISTING})

CUT = (
    Answer("cut head", "half of the head, then the connection is closed"),
    Answer("cut body", "the body ends at a byte that chance decides, and the connection is closed"),
    Answer("cut between records", "a shorter page, well formed and without an end, whose length is told", at=_LISTS),
    Answer("no length, cut", "no Content-Length; the body ends at a byte that chance decides"),
    Answer("no length, cut between records", "no Content-Length; the page is well formed without an end", at=_LISTS),
    Answer(
        "TLS cut", "no Content-Length; TLS ends without close_notify, between two records of a page", needs_tls=True
    ),
    Answer("empty body", "the honest head with Content-Length 0"),
    Answer("status 204", "204 No Content, signed, with the digest of nothing"),
    Answer("chunk without end", "chunks without the last one, then the connection is closed"),
)
"""The bytes end too early."""

ENDLESS = (
    Answer("1xx without end", "interim answers, one after the other"),
    Answer("chunks without end", "one chunk after the other"),
    Answer("absurd chunk", "a chunk of 2^63 - 1 bytes is announced"),
    Answer("absurd length", "a body of 10^15 bytes is announced"),
    Answer("slow", "byte by byte, each well within the time-out of a wait"),
    Answer("silence", "nothing, while the connection stays open"),
    Answer("forgotten", "nothing, on a connection that was used before; new ones work", lasts=False, is_done=False),
)
"""The bytes do not end, do not come, or are announced beyond all reason."""

REFUSED = (
    Answer("429", "throttling, as the service says it", is_done=False),
    Answer("429 of a gateway", "throttling as HTML", is_done=False),
    Answer("503", "an outage, as the service says it", is_done=False),
    Answer("502 of a gateway", "HTML with status 502", is_done=False),
    Answer("200 of a gateway", "HTML with status 200"),
    Answer("error with 200", "the message of an error, signed, with status 200"),
)
"""A refusal, or the answer of a gateway."""

MISTAKEN = (
    Answer("wrong digest", "the honest body, signed with another digest"),
    Answer("repeated page", "the page before, once more", at=_PAGES),
    Answer("old page", "the first page or listing of all, once more", at=_LISTS),
    Answer("page of another shard", "an older page of another shard or channel", at=_PAGES),
    Answer("page that goes back", "the honest records, and the first position of the list to go on from", at=_PAGES),
    Answer("page that stays", "the honest records, and the position that was asked for to go on from", at=_PAGES),
)
"""The answer to another question, or none that goes on."""

ANSWERS = (*CUT, *ENDLESS, *REFUSED, *MISTAKEN)


class Lasting(Enum):
    """For how long an answer is played."""

    ONCE = "once"
    THRICE = "three times"
    UNTIL_NAMED = "until it is named"

    @property
    def times(self) -> int | None:
        """How often; ``None`` until it is named."""
        return {Lasting.ONCE: 1, Lasting.THRICE: 3, Lasting.UNTIL_NAMED: None}[self]


@frozen
class ConsumerKind:
    """A consumer, the requests that it makes, and which connections its client may have."""

    name: str
    places: tuple[Place, ...]
    has_choice: bool = True
    """Whether its user can choose an ``Integrity``. Others have ``MD5``, over plain HTTP or TLS."""

    def __str__(self) -> str:
        return self.name


_STREAM = (RECORDS, ITERATOR, SHARDS, STREAMS)
_LEASES = (STATUS_TABLE, ROW, ROWS, SOME_ROWS, BATCH)

WORKER = ConsumerKind("worker", (*_STREAM, *_LEASES))
TUNNEL = ConsumerKind("tunnel worker", (CONNECT, HEARTBEAT, FIND, CHANNEL, STORE))
TAIL = ConsumerKind("tail", _STREAM)
REPLICATE = ConsumerKind("replicate", (*_STREAM, DATA_TABLE, PUT, *_LEASES, COPY), has_choice=False)
MIRROR = ConsumerKind("mirror", (*_STREAM, DATA_TABLE, *_LEASES, COPY))
SOURCE = ConsumerKind("source", (*_STREAM,), has_choice=False)
TUNNEL_REPLICATE = ConsumerKind("replicate by tunnel", (*TUNNEL.places, DATA_TABLE, TUNNEL_STATE), has_choice=False)
TUNNEL_SOURCE = ConsumerKind("source by tunnel", (TUNNEL_STATE, FIND, CHANNEL, STORE), has_choice=False)

CONSUMERS = (WORKER, TUNNEL, TAIL, REPLICATE, MIRROR, SOURCE, TUNNEL_REPLICATE, TUNNEL_SOURCE)

PLAIN, TLS = "http", "https"


@frozen
class Connection:
    """What vouches for pages, and how the consumer reaches the service."""

    scheme: str
    integrity: Integrity

    def __str__(self) -> str:
        return f"{self.integrity.name} over {self.scheme}"


CONNECTIONS = (
    Connection(PLAIN, Integrity.MD5),
    Connection(PLAIN, Integrity.CHECKSUMS),
    Connection(TLS, Integrity.MD5),
    Connection(TLS, Integrity.TLS),
    Connection(TLS, Integrity.CHECKSUMS),
)


@frozen
class Case:
    """One line of the table."""

    consumer: ConsumerKind
    place: Place
    answer: Answer
    connection: Connection
    lasting: Lasting

    @property
    def is_without_digest(self) -> bool:
        """Whether nothing but TLS, or not even that, vouches for the bytes."""
        return self.place.has_choice and self.connection.integrity is not Integrity.MD5

    def __str__(self) -> str:
        return f"{self.consumer}: {self.answer} at {self.place}, {self.connection}, {self.lasting.value}"


# --- what is left out -------------------------------------------------------------------------------------------------

_SHORTER = ("cut body", "no length, cut", "TLS cut", "empty body")
_FIRST = (STREAMS, DATA_TABLE, STATUS_TABLE, CONNECT)

RULES: Sequence[tuple[str, Callable[[Case], bool]]] = (
    ("a consumer meets only what it asks for", lambda case: case.place in case.consumer.places),
    ("answers about pages and listings are for these", lambda case: case.place.kind in case.answer.at),
    ("an end of TLS needs TLS", lambda case: case.connection.scheme == TLS or not case.answer.needs_tls),
    (
        "an integrity is told from MD5 only where it decides, and by those who can choose it",
        lambda case: case.connection.integrity is Integrity.MD5 or (case.place.has_choice and case.consumer.has_choice),
    ),
    ("what is no outage does not last", lambda case: case.answer.lasts or case.lasting is not Lasting.UNTIL_NAMED),
    ("what is harmless is never named", lambda case: case.lasting is not Lasting.UNTIL_NAMED or not is_harmless(case)),
    (
        "the first request of a client has no used connection",
        lambda case: case.answer.name != "forgotten" or case.place not in _FIRST,
    ),
    (
        "a checkpoint of a tunnel that is stored is found by looking, so no answer to it that goes wrong is an outage",
        lambda case: case.place is not STORE or case.lasting is not Lasting.UNTIL_NAMED or not case.answer.is_done,
    ),
    (
        "the message of an error is a well-formed answer of GetShardIterator, with the code as the iterator",
        lambda case: not (case.place is ITERATOR and case.answer.name == "error with 200"),
    ),
    ("of nothing nothing can be missing", lambda case: not (case.place.is_empty and case.answer.name in _SHORTER)),
    ("a copy reads one list", lambda case: not (case.place is COPY and case.answer.name == "page of another shard")),
)
"""A case is in the table if all of these hold. That a page is of another shard shows only in its records, which are
older than those before: a newer page of another shard cannot be told from an honest one by anything that the service
sends, so it is not in the table."""


def is_harmless(case: Case) -> bool:
    """Whether the answer is good for the consumer: true records, or a listing that was true a moment ago."""
    is_old_listing = case.answer.name == "old page" and case.place.kind is Kind.LISTING
    return is_old_listing or (case.answer.name == "wrong digest" and case.is_without_digest)


# --- where an error may end a case ------------------------------------------------------------------------------------

_STREAM_SET = frozenset(_STREAM)
ENDS: Sequence[tuple[ConsumerKind, frozenset[Place], str]] = (
    (TAIL, frozenset({STREAMS, SHARDS}), "nothing was shown yet, and a person waits at the terminal"),
    (
        REPLICATE,
        frozenset({DATA_TABLE, STREAMS, STATUS_TABLE, ROW, ROWS, PUT}),
        "the start fails, and the next run goes on",
    ),
    (
        MIRROR,
        frozenset({DATA_TABLE, STREAMS, SHARDS, ITERATOR, COPY}),
        "the copy ends the run, and the next one goes on",
    ),
    (SOURCE, _STREAM_SET, "a query ends with its error, and is started again from its checkpoint"),
    (TUNNEL_REPLICATE, frozenset({DATA_TABLE, TUNNEL_STATE}), "the start fails, and the next run goes on"),
    (TUNNEL_SOURCE, frozenset(TUNNEL_SOURCE.places), "a query ends with its error, and is started again"),
)


def may_end(case: Case) -> str:
    """Why a case may end with an error that names its cause; empty where it may not."""
    found = (reason for consumer, places, reason in ENDS if consumer is case.consumer and case.place in places)
    return next(found, "")


# --- which cases are played -------------------------------------------------------------------------------------------


def all_cases() -> Iterator[Case]:
    """The whole table."""
    for values in product(CONSUMERS, PLACES, ANSWERS, CONNECTIONS, Lasting):
        case = Case(*values)
        if all(holds(case) for _, holds in RULES):
            yield case


def singles(case: Case) -> frozenset[object]:
    """Each answer to a worker's page without a digest and elsewhere; each place and connection of each consumer."""
    return frozenset(
        {
            (case.consumer, case.place),
            (case.answer, case.consumer is WORKER and case.is_without_digest),
            (case.consumer, case.connection),
            (case.consumer, case.lasting),
        }
    )


SHORT_SEED = 1
"""Of the cases that every run of the tests plays."""


@cache
def _short() -> list[Case]:
    return chosen(all_cases(), SHORT_SEED, singles)


def short_cases(consumer: ConsumerKind) -> list[Case]:
    """Those of one consumer that every run of the tests plays."""
    return [case for case in _short() if case.consumer is consumer]
