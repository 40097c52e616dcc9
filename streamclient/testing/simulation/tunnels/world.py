"""One history: a table, a tunnel, processes that come and go, faults; then calm, and everything must be consumed.

One seed decides everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attrs import define, field

from streamclient.core.tunnel import events
from streamclient.core.tunnel.session import SessionSettings, TunnelSession
from streamclient.server.tunnels.channels import Status, Tunnel
from streamclient.testing.simulation.agenda import Agenda
from streamclient.testing.simulation.dice import Dice
from streamclient.testing.simulation.tunnels.client import Pace, TunnelProcess
from streamclient.testing.simulation.tunnels.laws import TunnelLaws
from streamclient.testing.simulation.tunnels.service import TABLE, CallFaults, SimulatedService
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, Row, encode_row
from streamclient.wire.schema import PrimaryKeyType, RowExistenceExpectation

HEARTBEAT_SECONDS = 5.0
TIMEOUT_SECONDS = 20.0
CLOCK_DRIFT = 0.002
"""Largest difference of a process's clock from true time, as a share: twenty times that of poor hardware."""

CALM = CallFaults(delay_seconds=0.01)
SETTLE_SECONDS = 15 * TIMEOUT_SECONDS
"""Bound for consuming everything once faults are over: expiry of dead sessions, then channel by channel."""

STORM_ACTIONS = ("write", "write", "split", "merge", "crash", "restart", "join", "freeze", "stop", "end session")


@define(eq=False)
class TunnelWorld:
    """Call ``run`` once; it raises ``TunnelViolation`` at the event that breaks a law."""

    seed: int
    dice: Dice = field(init=False)
    agenda: Agenda = field(factory=Agenda)
    injected: Counter[str] = field(factory=Counter)
    service: SimulatedService = field(init=False)
    laws: TunnelLaws = field(init=False)
    pace: Pace = field(init=False)
    processes: list[TunnelProcess] = field(factory=list)
    keys: int = 20
    _identifiers: int = 0
    _base_keys: frozenset[int] = frozenset()

    def __attrs_post_init__(self) -> None:
        self.dice = Dice.of(self.seed, "world")
        dice = self.dice
        lost, unanswered, late, away = (dice.choice((0.0, 0.02, 0.06)) for _ in range(4))
        rates = CallFaults(lost, unanswered, late, away, delay_seconds=dice.choice((0.02, 0.3)))
        self.service = SimulatedService(self.agenda, rates, self.injected)
        self.laws = TunnelLaws(self.seed, self.agenda, self.service)
        self.pace = Pace(TIMEOUT_SECONDS, dice.choice((1, 2, 5)), dice.choice((0.05, 0.5, 3.0)))
        self.keys = dice.choice((6, 20, 60))

    # --- the history ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole history: making, storm, calm."""
        self._make()
        for _ in range(self.dice.randint(1, 3)):
            self._start_process()
        until = self.agenda.now + 60.0 + 120.0 * self.dice.random()
        while self.agenda.now < until:
            self.agenda.run_until(self.agenda.now + 0.5 + 8.0 * self.dice.random())
            self._disturb(self.dice.choice(STORM_ACTIONS))
            self.laws.check_checkpoints()
        self._settle()

    def _make(self) -> None:
        meta = schema.TableMeta(table_name=TABLE)
        meta.primary_key.add(name="id", type=int(PrimaryKeyType.INTEGER))
        request = schema.CreateTableRequest(table_meta=meta)
        request.reserved_throughput.capacity_unit.read = 0
        request.reserved_throughput.capacity_unit.write = 0
        request.stream_spec.enable_stream = True
        request.stream_spec.expiration_time = 24
        self.service.now("CreateTable", request)
        self._write(range(self.keys))
        if self.dice.chance(0.5):
            self.service.engine.split_shard(TABLE)
        kind = self.dice.choice((1, 2, 3, 3))
        tunnel = schema.Tunnel(table_name=TABLE, tunnel_name="t", tunnel_type=kind)
        answer = self.service.now("tunnel/create", schema.CreateTunnelRequest(tunnel=tunnel))
        self.service.tunnel_id = answer.tunnel_id
        self._base_keys = frozenset(range(self.keys)) if kind != 2 else frozenset()

    def _write(self, keys: Sequence[int]) -> None:
        for key in keys:
            row = encode_row(Row((("id", key),), (Cell("value", round(self.agenda.now * 1_000)),)))
            request = schema.PutRowRequest(table_name=TABLE, row=row)
            request.condition.row_existence = int(RowExistenceExpectation.IGNORE)
            self.service.now("PutRow", request)

    def _start_process(self) -> None:
        number = len(self.processes)
        settings = SessionSettings(heartbeat_interval=HEARTBEAT_SECONDS, heartbeat_timeout=TIMEOUT_SECONDS)
        dice = Dice.of(self.seed, "process", number)
        session = TunnelSession(settings, Dice.of(self.seed, "session", number), new_identifier=self._new_identifier)
        rate = 1.0 + CLOCK_DRIFT * (2.0 * dice.random() - 1.0)
        process = TunnelProcess(
            self.agenda, self.service, self.laws, self.pace, f"w{number}", session, dice, 1_000.0 * dice.random(), rate
        )
        self.processes.append(process)
        process.deliver(events.SessionTick())

    def _new_identifier(self) -> str:
        self._identifiers += 1
        return f"r{self._identifiers}"

    def _disturb(self, action: str) -> None:
        dice = self.dice
        live = [process for process in self.processes if process.is_alive and not process.is_finished]
        self.injected[action] += 1
        if action == "write":
            self._write([dice.randrange(self.keys) for _ in range(dice.randint(1, 12))])
        elif action == "split":
            self._split()
        elif action == "merge":
            self._merge()
        elif action in ("crash", "restart") and live:
            dice.choice(live).is_alive = False
            if action == "restart" or len(live) == 1:
                self._start_process()
        elif action == "join" and len(live) < 4:
            self._start_process()
        elif action == "freeze" and live:
            frozen, until = dice.choice(live), self.agenda.now + 2.0 * TIMEOUT_SECONDS * dice.random()
            frozen.frozen_until = max(frozen.frozen_until, until)
        elif action == "stop" and len(live) > 1:
            leaving = dice.choice(live)
            leaving.is_leaving = True
            leaving.deliver(events.SessionStopRequested())
        elif action == "end session" and live:
            self._end_session(dice.choice(live))

    def _end_session(self, process: TunnelProcess) -> None:
        """As if the service had lost it. What the process does until its next heartbeat is not its fault."""
        client_id = process.session.client_id
        if client_id and not process.readers:
            self.laws.ended.add(client_id)
            self.service.now(
                "tunnel/shutdown", schema.ShutdownRequest(tunnel_id=self.service.tunnel_id, client_id=client_id)
            )

    def _split(self) -> None:
        open_shards = [shard for shard in self.service.engine.shards(TABLE) if shard.is_open]
        if len(open_shards) < 6:
            place = self.dice.randrange(1, self.keys)
            try:
                self.service.engine.split_shard(TABLE, at=(place,))
            except Exception:  # the place is a boundary already
                return

    def _merge(self) -> None:
        open_shards = [shard for shard in self.service.engine.shards(TABLE) if shard.is_open]
        if len(open_shards) > 1:
            place = self.dice.randrange(len(open_shards) - 1)
            pair = (open_shards[place].shard_id, open_shards[place + 1].shard_id)
            self.service.engine.merge_shards(TABLE, *pair)

    # --- the end -------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        self.service.rates = CALM
        self.pace.process_seconds = 0.05
        if not any(process.is_alive and not process.is_leaving for process in self.processes):
            self._start_process()
        deadline = self.agenda.now + SETTLE_SECONDS
        while (left := self._unsettled()) and self.agenda.now < deadline:
            self.agenda.run_until(self.agenda.now + HEARTBEAT_SECONDS)
            self.laws.check_checkpoints()
        self.laws.check(not left, "everything is consumed in the end", "; ".join(left))

    def _unsettled(self) -> list[str]:
        left = [f"row {key} of the full data" for key in sorted(self._base_keys - self.laws.base)]
        tunnel = self.laws.tunnel
        stream = self.service.engine._state.streams.get(tunnel.definition.stream_id)
        if stream is not None and tunnel.definition.has_stream:
            for channel in tunnel.channels.values():
                if channel.is_base:
                    continue
                shard = stream.shards[channel.channel_id]
                first = channel.start_position
                due = shard.next_position - max(first, shard.first_position)
                seen = sum(1 for channel_id, _ in self.laws.seen if channel_id == channel.channel_id)
                if seen < due:
                    left.append(f"{due - seen} changes of {self.laws.name(channel.channel_id)}")
            left += self._unassigned(tunnel)
        return left

    def _unassigned(self, tunnel: Tunnel) -> list[str]:
        """Channels without a live reader, and an uneven spread."""
        live = [process for process in self.processes if process.is_alive and not process.is_finished]
        readers = Counter(reader.channel_id for process in live for reader in process.readers.values())
        open_channels = [each for each in tunnel.channels.values() if each.status is not Status.TERMINATED]
        left = [
            f"{self.laws.name(each.channel_id)} has {readers[each.channel_id]} readers"
            for each in open_channels
            if readers[each.channel_id] != 1
        ]
        counts = [len(process.readers) for process in live if process.session.client_id]
        if counts and max(counts) - min(counts) > 1:
            left.append(f"uneven: {counts}")
        return left


def play(seed: int) -> TunnelWorld:
    """Run one history."""
    world = TunnelWorld(seed)
    world.run()
    return world
