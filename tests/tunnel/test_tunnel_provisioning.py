"""The steps of a program that provisions tunnels, as the acceptance test of the Terraform provider takes them.

Such a program makes a table and a tunnel, waits until the tunnel has left its first stage, compares every attribute,
imports the tunnel by its names, and deletes all of it. Nothing ever reads the tunnel.
"""

from __future__ import annotations

import pytest
from tablestore import CapacityUnit, ReservedThroughput, TableMeta, TableOptions

from streamclient.server import DEFAULT_INSTANCE, LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.tunnel import (
    ChannelType,
    TunnelClient,
    TunnelError,
    TunnelExistsError,
    TunnelInfo,
    TunnelStage,
    TunnelType,
)
from tests.patience import until

TABLE, NAME = "testAcc10000", "testAcc10000"

CHANNELS = {
    TunnelType.BASE_AND_STREAM: [ChannelType.BASE_DATA, ChannelType.STREAM],
    TunnelType.BASE_DATA: [ChannelType.BASE_DATA],
    TunnelType.STREAM: [ChannelType.STREAM],
}


def listed(tunnels: TunnelClient) -> TunnelInfo:
    (found,) = [each for each in tunnels.list_tunnel(TABLE) if each.tunnel_name == NAME]
    return found


@pytest.mark.parametrize("kind", CHANNELS)
@pytest.mark.parametrize("calls_in_the_first_stage", [0, 3])
def test_a_program_that_provisions_tunnels_finds_what_it_found_at_the_service(
    kind: TunnelType, calls_in_the_first_stage: int
) -> None:
    with LocalTablestore(tunnel_init_calls=calls_in_the_first_stage) as local:
        ots = local.client()
        tunnels = TunnelClient(ots)
        ots.create_table(
            TableMeta(TABLE, [("pk1", "INTEGER"), ("pk2", "STRING")]),
            TableOptions(time_to_live=-1, max_version=1),
            ReservedThroughput(CapacityUnit(0, 0)),
        )
        tunnel_id = tunnels.create_tunnel(TABLE, NAME, kind)
        until(lambda: listed(tunnels).stage is not TunnelStage.INIT, "the end of the first stage")
        made = tunnels.describe_tunnel(TABLE, NAME)
        imported = tunnels.describe_tunnel(TABLE, NAME)

        assert (made.info.tunnel_id, made.info.tunnel_type) == (tunnel_id, kind)
        assert (made.info.table_name, made.info.instance_name) == (TABLE, DEFAULT_INSTANCE)
        stage = TunnelStage.PROCESS_STREAM if kind is TunnelType.STREAM else TunnelStage.PROCESS_BASE_DATA
        assert (made.info.stage, made.info.is_expired, made.consume_point_micros) == (stage, False, 0)
        assert made.info.create_time_micros > 0
        assert sorted((each.channel_type for each in made.channels), key=lambda each: each.value) == CHANNELS[kind]
        assert all(each.channel_id for each in made.channels)
        assert {(each.client_id, each.consume_point_micros) for each in made.channels} == {("", 0)}
        assert imported == made
        if kind is not TunnelType.BASE_DATA:
            assert TablestoreStreamApi(ots).describe_table(TABLE).stream.expiration_time_hours == 7 * 24

        with pytest.raises(TunnelExistsError):
            tunnels.create_tunnel(TABLE, NAME, kind)
        tunnels.delete_tunnel(TABLE, NAME)
        assert list(tunnels.list_tunnel(TABLE)) == []
        with pytest.raises(TunnelError):
            tunnels.describe_tunnel(TABLE, NAME)
        ots.delete_table(TABLE)
        assert ots.list_table() == ()
