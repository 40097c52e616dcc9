"""Tables, rows, changes and shards as ``Control`` shows them: without a request, a fault or a count."""

from __future__ import annotations

import pytest
from tablestore import Row

from streamclient.errors import ConfigurationError
from streamclient.server import Exchange, Latency, LocalTablestore, ServiceError
from streamclient.server.fault_rules import FaultRule
from streamclient.wire import record_decoding
from tests.stage import make_table, put_rows


@pytest.fixture
def server() -> LocalTablestore:
    """A Tablestore of this process: what is seen here is not in the protocol."""
    return LocalTablestore(tables={"orders": {"id": str, "n": int}})


def test_changes_go_on_after_the_positions_of_an_earlier_answer(server: LocalTablestore) -> None:
    with server:
        for number in range(5):
            server.put("orders", id="a", n=number)
        first = server.control.changes("orders", most=3)
        low, high = server.split("orders", at="m")
        server.put("orders", id="z", n=9)
        server.delete("orders", id="a", n=0)
        then = server.control.changes("orders", first.positions)
        last = server.control.changes("orders", then.positions)

    assert [view.record.key["n"] for view in first.records] == [2, 3, 4]
    assert first.skipped == 2
    assert [(view.shard_id, view.record.record_type.name) for view in then.records] == [(high, "PUT"), (low, "DELETE")]
    assert (then.skipped, last.records, last.positions) == (0, (), then.positions)


def test_the_readable_codec_decodes_changes_too(server: LocalTablestore, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamclient.server import table_views

    monkeypatch.setattr(table_views, "default_codec", record_decoding.PurePythonCodec)
    with server:
        server.put("orders", id="a", n=1, amount=2)
        (view,) = server.control.changes("orders").records

    assert view.record.values == {"id": "a", "n": 1, "amount": 2}


def test_trimmed_changes_are_not_shown(server: LocalTablestore) -> None:
    with server:
        server.put("orders", id="a", n=1)
        server.trim("orders")
        server.put("orders", id="b", n=2)

        assert [view.position for view in server.control.changes("orders").records] == [1]


def test_rows_go_on_after_a_key_and_expired_rows_are_left_out(server: LocalTablestore) -> None:
    with server:
        make_table(server.client(), "brief", time_to_live=86_400)
        put_rows(server.client(), "brief", [Row([("id", "old")], [("n", 1)])])
        for number in (3, 1, 2):
            server.put("orders", id="a", n=number)
        first = server.control.rows("orders", most=2)
        rest = server.control.rows("orders", first[-1].encoded_key)
        server.advance_clock(2 * 86_400)

        assert [row.key for row in (*first, *rest)] == [(("id", "a"), ("n", number)) for number in (1, 2, 3)]
        assert server.control.rows("brief") == []


def test_spans_tell_when_shards_opened_and_closed_until_their_parents_are_forgotten(server: LocalTablestore) -> None:
    with server:
        (root,) = server.control.spans("orders")
        server.split("orders", at="m")
        parent, low, high = server.control.spans("orders")
        server.advance_clock(3 * 86_400)
        left = server.control.spans("orders")

    assert (root.begin, root.end, root.closed_micros) == (b"", None, None)
    assert parent.closed_micros == low.opened_micros == high.opened_micros
    assert (low.begin, low.end, high.end) == (b"", high.begin, None)
    assert [span.shard_id for span in left] == [low.shard_id, high.shard_id]


def test_tables_are_listed_with_their_keys_and_streams(server: LocalTablestore) -> None:
    with server:
        make_table(server.client(), "bare", stream=None)
        server.put("orders", id="a", n=1)
        bare, orders = server.control.tables()

    assert (bare.name, bare.retention_hours, bare.open_shard_count) == ("bare", None, 0)
    assert orders.key == (("id", "STRING"), ("n", "INTEGER"))
    assert (orders.row_count, orders.record_count, orders.open_shard_count) == (1, 1, 1)


def test_a_table_is_made_while_the_server_runs(server: LocalTablestore) -> None:
    with server:
        server.create_table("later", {"id": bytes})
        server.create_table("later", {"id": bytes})
        server.put("later", id=b"\x00")

        assert len(server.control.changes("later").records) == 1
        with pytest.raises(ConfigurationError, match="exists with the key"):
            server.create_table("later", {"id": int})
        with pytest.raises(ServiceError):
            server.control.changes("never made")


def test_an_observer_that_was_removed_hears_nothing_more(server: LocalTablestore) -> None:
    first: list[Exchange] = []
    second: list[Exchange] = []
    with server:
        hear = first.append
        server.observe(hear)
        server.observe(second.append)
        server.client().list_table()
        server.control.unobserve(hear)
        server.control.unobserve(hear)
        server.client().list_table()

    assert (len(first), len(second)) == (1, 2)
    assert second[0].seconds > 0


def test_nothing_that_is_shown_counts_or_meets_a_fault(server: LocalTablestore) -> None:
    with server:
        server.add_fault(FaultRule("*", Latency(3600)))
        control = server.control
        shown = (control.tables(), control.rows("orders"), control.changes("orders"), control.spans("orders"))
        shown += (control.tunnels(),)

        assert len(shown) == 5
        assert (server.requests(), server.faults()[0].seen) == ((), 0)
