"""The protobuf messages of the Tunnel Service, as text, in the notation of ``_messages``.

The messages have the fields of the Java SDK 5.17 and of the Go SDK's tunnel package. This package's client reads errors
as ``TunnelError``, in which field 3 is a tunnel id. The local server sends errors as ``Error`` of ``_messages``, which
has no tunnel id. The reason is the Java SDK, which reads every error as ``Error``. In ``Error``, field 3 is a protobuf
message. If a response had a tunnel id in field 3, the Java SDK would lose the error's code.
"""

MESSAGES = """
TunnelError: code=1! string, message=2 string, tunnel_id=3 string
StreamTunnelConfig: flag=1 int32, start_offset=2 uint64, end_offset=3 uint64
Tunnel: table_name=1! string, tunnel_name=3! string, tunnel_type=4! int32, stream_tunnel_config=5 StreamTunnelConfig, \
need_all_time_series_columns=6 bool
CreateTunnelRequest: tunnel=1! Tunnel
CreateTunnelResponse: tunnel_id=1! string
DeleteTunnelRequest: table_name=1! string, tunnel_name=2! string, tunnel_id=3 string
DeleteTunnelResponse:
ListTunnelRequest: table_name=1 string
TunnelInfo: tunnel_id=1! string, tunnel_type=2! string, table_name=3! string, instance_name=4! string, \
stream_id=5! string, stage=6! string, expired=7 bool, tunnel_name=8 string, public=9 bool, \
stream_tunnel_config=10 StreamTunnelConfig, create_time=11 int64
ListTunnelResponse: tunnels=1* TunnelInfo
DescribeTunnelRequest: table_name=1! string, tunnel_name=2! string, tunnel_id=3 string
ChannelInfo: channel_id=1! string, channel_type=2 string, channel_status=3 string, client_id=4 string, \
channel_rpo=5 int64, channel_count=6 int64
DescribeTunnelResponse: tunnel=1! TunnelInfo, channels=2* ChannelInfo, tunnel_rpo=3 int64
GetRpoRequest: tunnel_id=1 string, limit=2 int32
GetRpoResponse: rpo_infos=1 bytes, tunnel_rpo_infos=2 bytes, tunnel_id=3 string

TunnelClientConfig: timeout=1 int64, client_tag=2 string
ConnectRequest: tunnel_id=1! string, client_config=2 TunnelClientConfig
ConnectResponse: client_id=1! string
Channel: channel_id=1! string, version=2! int64, status=3! int32, detail=4 bytes
HeartbeatRequest: tunnel_id=1! string, client_id=2! string, channels=3* Channel
HeartbeatResponse: channels=1* Channel
ShutdownRequest: tunnel_id=1! string, client_id=2! string
ShutdownResponse:
ScheduleRequest: tunnel_id=1! string, channels=3* Channel
ScheduleResponse:

GetCheckpointRequest: tunnel_id=1! string, client_id=2! string, channel_id=3! string
GetCheckpointResponse: checkpoint=1! string, sequence_number=2! int64
CheckpointRequest: tunnel_id=1! string, client_id=2! string, channel_id=3! string, checkpoint=4! string, \
sequence_number=5! int64
CheckpointResponse:
ReadRecordsRequest: tunnel_id=1! string, client_id=2! string, channel_id=3! string, token=4! string
TunnelRecord: action_type=1! int32, record=2! bytes, origin_record=3 bytes
ReadRecordsResponse: records=1* TunnelRecord, next_token=2! string, may_more_record=3 bool
Token: version=1! int64, content=2! bytes
TokenContent: primary_key=1 bytes, iterator=2 string, timestamp=3 int64, total_count=4 int64
"""
