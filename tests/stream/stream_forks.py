"""A child that was forked uses no connection of its parent's, and its parent loses none by that."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest
import tablestore as sdk
from scripted_service import CERTIFICATE, scripted
from tablestore.connection import ConnectionPool
from urllib3 import Timeout

from streamclient.errors import ConfigurationError
from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.tablestore.kept_connections import KeptConnections
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire import schema
from streamclient.worker.lease import LeaseManager
from tests.patience import PATIENCE_SECONDS

LETTERS = ("a", "h", "o", "u")
READS = 200
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as server:
        TablestoreStreamApi(server.client()).create_table(
            sdk.TableMeta("orders", [("id", "STRING")]),
            sdk.TableOptions(),
            sdk.ReservedThroughput(sdk.CapacityUnit(0, 0)),
            stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
            split_points=LETTERS[1:],
        )
        for letter in LETTERS:
            for number in range(10):
                row = sdk.Row([("id", f"{letter}{number}")], [("text", letter * 100)])
                server.client().put_row("orders", row, sdk.Condition("IGNORE"))
        yield server


def iterators(api: TablestoreStreamApi) -> list[str]:
    """The oldest positions of the shards, by their letters."""
    (stream,) = api.list_stream("orders")
    shards = api.describe_stream(stream.stream_id).shards
    found = {}
    for shard in shards:
        iterator = api.get_shard_iterator(stream.stream_id, shard.shard_id)
        (record, *_) = api.get_stream_record(iterator).records
        found[str(record.primary_key[0][1])[0]] = iterator
    return [found[letter] for letter in LETTERS]


def letters_of(api: TablestoreStreamApi, iterator: str, reads: int = READS) -> Counter[str]:
    """First letters of all keys that were read."""
    return Counter(
        str(record.primary_key[0][1])[0] for _ in range(reads) for record in api.get_stream_record(iterator).records
    )


@contextmanager
def forked(work: Callable[[], Any]) -> Iterator[Connection]:
    """A child that sends what its work returns, or the text of its error."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        try:
            sender.send(work())
        except BaseException as error:
            sender.send(repr(error))

    child = context.Process(target=run, daemon=True)
    child.start()
    try:
        yield receiver
    finally:
        child.join(PATIENCE_SECONDS)
        receiver.close()
        sender.close()


def received(receiver: Connection) -> Any:
    assert receiver.poll(PATIENCE_SECONDS)
    return receiver.recv()


@pytest.mark.parametrize("parent_reads", [False, True], ids=["parent at rest", "parent reading"])
def test_children_of_a_process_that_has_read_each_get_their_own_shard(
    local: LocalTablestore, parent_reads: bool
) -> None:
    api = TablestoreStreamApi(local.client())
    places = iterators(api)
    ended = threading.Event()
    seen: list[Counter[str]] = [Counter() for _ in LETTERS]

    def read_on(number: int) -> None:
        while not ended.is_set():
            seen[number] += letters_of(api, places[number], 1)

    threads = [threading.Thread(target=read_on, args=(number,)) for number in range(len(LETTERS)) if parent_reads]
    for thread in threads:
        thread.start()
    try:
        children = [forked(lambda place=place: letters_of(api, place)) for place in places]  # type: ignore[misc]
        receivers = [child.__enter__() for child in children]
        found = [received(receiver) for receiver in receivers]
        for child in children:
            child.__exit__(None, None, None)
    finally:
        ended.set()
        for thread in threads:
            thread.join()

    assert found == [Counter({letter: 10 * READS}) for letter in LETTERS]
    assert all(set(letters) <= {letter} for letters, letter in zip(seen, LETTERS, strict=True))
    assert letters_of(api, places[0], 1) == {"a": 10}


@pytest.mark.parametrize("has_tls", [False, True], ids=["HTTP", "TLS"])
def test_a_child_ends_no_connection_of_its_parents(has_tls: bool) -> None:
    """Over TLS, a goodbye from the child would be one from the parent."""
    tls = ssl.create_default_context(cafile=str(CERTIFICATE)) if has_tls else None
    with scripted(lambda _: schema.ListStreamResponse(), has_tls=has_tls) as script:
        kept = KeptConnections(script.client.host, timeout_seconds=30, most_idle=1, tls=tls)

        def status() -> int:
            return kept.post("/ListStream", "", b"", is_repeatable=False).status

        assert status() == 200
        (before,) = kept._idle
        with forked(status) as receiver:
            assert received(receiver) == 200
        assert status() == 200
        assert list(kept._idle) == [before]
        kept.close()


def test_an_exchange_that_a_fork_interrupts_has_no_answer_in_the_child() -> None:
    """The answer is its parent's, who waits for it, too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = KeptConnections(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=30, most_idle=1)
        receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
        children: list[int] = []

        def fork(*_: object) -> None:
            children.append(os.fork())

        def answer() -> None:
            channel, _ = listener.accept()
            with channel:
                channel.recv(1_000)
                os.kill(os.getpid(), signal.SIGUSR1)  # the main thread forks while it waits
                asked.wait()
                channel.sendall(OK)

        asked = threading.Event()
        thread = threading.Thread(target=answer)
        previous = signal.signal(signal.SIGUSR1, lambda *_: (fork(), asked.set()))
        try:
            thread.start()
            try:
                found: object = kept.post("/", "", b"", is_repeatable=True).body
            except OSError as error:
                found = type(error)
            if children == [0]:
                sender.send(found)
                os._exit(0)
            assert found == b"ok"
            assert received(receiver) is OSError
        finally:
            if children == [0]:
                os._exit(1)
            signal.signal(signal.SIGUSR1, previous)
            asked.set()  # whatever came of it, the thread ends
            thread.join()
            for child in children:
                os.waitpid(child, 0)


def test_leases_are_read_by_parent_and_children(local: LocalTablestore) -> None:
    manager = LeaseManager(local.client(), "status", "stream")
    manager.create_lease_table_if_not_exists()
    assert manager.list_leases() == []

    def read() -> int:
        return sum(len(manager.list_leases()) for _ in range(READS))

    with forked(read) as first, forked(read) as second:
        assert (received(first), received(second), read()) == (0, 0, 0)


def test_the_sdks_pool_in_a_client_is_made_anew_in_a_child(local: LocalTablestore) -> None:
    """A client whose time-out only that pool understands reads over it."""
    api = TablestoreStreamApi(local.client(socket_timeout=Timeout(connect=30, read=30)))
    places = iterators(api)
    with (
        forked(lambda: letters_of(api, places[0])) as first,
        forked(lambda: letters_of(api, places[1])) as second,
    ):
        assert (received(first), received(second)) == ({"a": 10 * READS}, {"h": 10 * READS})


def test_a_users_own_connection_that_was_used_before_a_fork_is_refused_in_the_child(local: LocalTablestore) -> None:
    class Own(ConnectionPool):
        """Whose sockets nobody else knows."""

    def calls() -> SignedCalls:
        client = local.client()
        client.connection = Own(client.host, client.path, timeout=30)
        return SignedCalls(client)

    used, fresh = calls(), calls()
    used.call("ListStream", b"", is_repeatable=True)

    def refused() -> str:
        with pytest.raises(ConfigurationError) as raised:
            used.call("ListStream", b"", is_repeatable=True)
        return str(raised.value)

    with forked(refused) as receiver:
        assert "of this client, a Own, was used before this process was forked" in received(receiver)
    with forked(lambda: len(fresh.call("ListStream", b"", is_repeatable=True))) as receiver:
        assert received(receiver) > 0
    used.call("ListStream", b"", is_repeatable=True)
