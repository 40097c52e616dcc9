"""Records per second through a tunnel, by this package's worker and by a plain loop of reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks import tunnel_deaths
from benchmarks.report import Aim, Line, Round, at_least, compare, interleaved
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tunnel_target import Target, new_tunnel
from benchmarks.workers import Meter
from streamclient import StreamRecord
from streamclient.tunnel import StartOffset, StreamTunnelConfig, TunnelType, TunnelWorker, TunnelWorkerConfig

CHANNELS = (1, 4)

LEAST_RATE = 87_000.0
"""The smallest accepted rate, in records per second: three times the rate with the codec in Python, on the machine that
``docs/benchmarks.md`` names."""

KINDS = {"full data": TunnelType.BASE_DATA, "changes": TunnelType.STREAM}


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure full data and changes from one channel and from several channels; then the end of a worker."""
    lines: list[Line] = []
    for (what, kind), channels in itertools.product(KINDS.items(), CHANNELS):
        table = stage.table(channels, settings.stream_records)
        name = f"{what}, {channels} channel{'s' * (channels > 1)}"
        rounds: dict[str, Round] = {}
        for how, consume in _candidates(channels).items():
            rounds[f"{name}: {how}"] = partial(_rate, stage, table.name, kind, settings.stream_records, consume)
        rates = interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
        lines += compare("tunnel", "records/s", rates, aims=_aims)
    return lines + tunnel_deaths.measure(stage, settings)


def _aims(_: str, rate: float) -> list[Aim]:
    return [at_least(rate, LEAST_RATE, "records/s")]


# --- records per second --------------------------------------------------------------------------------------------


def _candidates(channels: int) -> dict[str, Callable[[Target, Meter], None]]:
    candidates: dict[str, Callable[[Target, Meter], None]] = {
        "read loop over TunnelClient": _loop,
        "TunnelWorker": partial(_work, TunnelWorkerConfig()),
    }
    if channels > 1:
        candidates["TunnelWorker, max_channel_parallel=1"] = partial(_work, TunnelWorkerConfig(max_channel_parallel=1))
    return candidates


def _rate(stage: Stage, table: str, kind: TunnelType, records: int, consume: Callable[[Target, Meter], None]) -> float:
    """Return records per second from the first call of the session to the last record."""
    config = None if kind is TunnelType.BASE_DATA else StreamTunnelConfig(StartOffset.EARLIEST)
    meter = Meter(records)
    with new_tunnel(stage.client(), table, kind, config) as target:
        meter.start()
        consume(target, meter)
    return meter.rate


def _loop(target: Target, meter: Meter) -> None:
    """Read like a program without a worker: one channel after the other, without a session, a checkpoint at its end."""
    tunnels, tunnel_id = target.client, target.tunnel_id
    for channel_id in target.open_channels():
        found = tunnels.get_checkpoint(tunnel_id, "loop", channel_id)
        token = found.token
        while True:
            page = tunnels.read_records(tunnel_id, "loop", channel_id, token)
            token = page.next_token
            meter.add(len(page.records))
            if page.is_finished or not page.may_more_record:
                break
        tunnels.checkpoint(tunnel_id, "loop", channel_id, token, found.sequence_number + 1)
    meter.wait()


def _work(config: TunnelWorkerConfig, target: Target, meter: Meter) -> None:
    """Read with a real worker, which has a session, heartbeats, and a checkpoint every five seconds and at the end."""

    def count(records: Sequence[StreamRecord]) -> None:
        meter.add(len(records))

    with TunnelWorker(target.tunnel_id, target.client, count, config) as worker:
        meter.wait(worker)
