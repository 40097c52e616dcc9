"""One history of a tunnel: a time with faults, then a time until the clients have processed all records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from streamclient.core.tunnel import tunnel_events as events
from streamclient.core.tunnel.tunnel_session import SessionSettings, TunnelSession
from streamclient.server.tunnels.tunnel_channels import Status, Tunnel
from streamclient.testing.history import LawBroken
from streamclient.testing.simulation.kernel import Dice, Observer, PlayedHistory
from streamclient.testing.simulation.plan import Action, TunnelPlan
from streamclient.testing.simulation.simulated_faults import Do
from streamclient.testing.simulation.tunnels.simulated_tunnel_client import TunnelProcess
from streamclient.testing.simulation.tunnels.simulated_tunnel_service import TABLE, SimulatedService
from streamclient.testing.simulation.tunnels.tunnel_laws import TunnelLaws
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, Row, encode_row
from streamclient.wire.schema import PrimaryKeyType, RowExistenceExpectation

CALM_PROCESS_SECONDS = 0.05

SETTLE_DURATIONS = 15
"""The time limit for the delivery of all records. The time begins at the end of all faults, and its unit is the plan's
``duration_seconds``. This time suffices for the expiry of dead sessions, and for reading the channels one after the
other."""

LOOK_SECONDS = 5.0
"""The interval, in seconds, between two checks of the stored checkpoints and of the recovery."""

MOST_SHARDS = 6
"""The number of open shards at which a history stops splitting shards."""

MOST_ROWS_AT_ONCE = 12

BASE, CHANGES = 1, 2
"""The types of tunnels with full data alone, and with changes alone."""


class TunnelWorld(PlayedHistory):
    """One history of a tunnel. Call ``run`` once; it raises ``LawBroken`` at the event that breaks a law."""

    plan: TunnelPlan

    def __init__(self, plan: TunnelPlan, observer: Observer | None = None) -> None:
        super().__init__(plan, observer)
        self.service = SimulatedService(self.agenda, self.network)
        self.laws = TunnelLaws(self, self.service, plan.process_seconds)
        self.processes: list[TunnelProcess] = []
        self._is_writing = True
        self._written: Counter[int] = Counter()
        """The number of changes written to each key since the tunnel was created."""
        self._identifiers = 0

    # --- the history ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the whole history: the creation of table and tunnel, the time with faults, and the recovery."""
        self._make()
        for action in self.plan.actions:
            self.agenda.at(action.at, self.act, _DO, self, action)
        self._write_rows()
        self._look()
        self.agenda.run_until(self.plan.storm_seconds)
        self._calm()
        self._settle()

    def _make(self) -> None:
        meta = schema.TableMeta(table_name=TABLE)
        meta.primary_key.add(name="id", type=int(PrimaryKeyType.INTEGER))
        request = schema.CreateTableRequest(table_meta=meta)
        request.reserved_throughput.capacity_unit.read = 0
        request.reserved_throughput.capacity_unit.write = 0
        request.table_options.time_to_live = -1
        request.table_options.max_versions = 1
        request.stream_spec.enable_stream = True
        request.stream_spec.expiration_time = 24
        self.service.now("CreateTable", request)
        self._write(range(self.plan.keys))
        for _ in range(self.plan.shards - 1):
            self.service.engine.split_shard(TABLE)
        tunnel = schema.Tunnel(table_name=TABLE, tunnel_name="t", tunnel_type=self.plan.tunnel)
        answer = self.service.now("tunnel/create", schema.CreateTunnelRequest(tunnel=tunnel))
        self.service.tunnel_id = answer.tunnel_id
        self._written.clear()

    def _write(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._written[key] += 1
            row = encode_row(Row((("id", key),), (Cell("number", self._written[key]),)))
            request = schema.PutRowRequest(table_name=TABLE, row=row)
            request.condition.row_existence = int(RowExistenceExpectation.IGNORE)
            self.service.now("PutRow", request)

    def _write_rows(self) -> None:
        dice = self.dice
        if self._is_writing:
            self._write([dice.randrange(self.plan.keys) for _ in range(dice.randint(1, MOST_ROWS_AT_ONCE))])
            self.agenda.after(self.plan.write_seconds * (0.5 + dice.random()), self._write_rows)

    def _look(self) -> None:
        self.laws.check_checkpoints()
        self.agenda.after(LOOK_SECONDS, self._look)

    # --- events ---------------------------------------------------------------------------------------------------

    def _living(self, who: str) -> TunnelProcess | None:
        found = [each for each in self.processes if each.name == who and each.is_alive and not each.is_finished]
        return found[-1] if found else None

    def _start(self, action: Action) -> bool:
        if self._living(action.who) is not None:
            return False
        plan, life = self.plan, len(self.processes)
        settings = SessionSettings(heartbeat_interval=plan.heartbeat_seconds, heartbeat_timeout=plan.timeout_seconds)
        session = TunnelSession(settings, Dice.of(plan.seed, "session", life), new_identifier=self._new_identifier)
        process = TunnelProcess(plan, self.laws, action.who, session, Dice.of(plan.seed, "process", life))
        self.processes.append(process)
        process.deliver(events.SessionTick())
        return True

    def _new_identifier(self) -> str:
        self._identifiers += 1
        return f"r{self._identifiers}"

    def _crash(self, action: Action) -> bool:
        process = self._living(action.who)
        if process is None:
            return False
        process.crash()
        return True

    def _stop(self, action: Action) -> bool:
        process = self._living(action.who)
        if process is None or process.is_leaving:
            return False
        process.is_leaving = True
        process.deliver(events.SessionStopRequested())
        return True

    def _freeze(self, action: Action) -> bool:
        process = self._living(action.who)
        if process is None:
            return False
        process.freeze(action.seconds)
        return True

    def _end_session(self, action: Action) -> bool:
        """End the session of a client without readers, as if the service had lost the session.

        The client cannot know this until its next heartbeat.
        """
        process = self._living(action.who)
        client_id = "" if process is None or process.readers else process.session.client_id
        if not client_id:
            return False
        self.laws.ended.add(client_id)
        request = schema.ShutdownRequest(tunnel_id=self.service.tunnel_id, client_id=client_id)
        self.service.now("tunnel/shutdown", request)
        return True

    def _split(self, action: Action) -> bool:
        place = 1 + int(action.where * (self.plan.keys - 1))
        if len(self._open_shards()) >= MOST_SHARDS:
            return False
        try:
            self.service.engine.split_shard(TABLE, at=(place,))
        except Exception:  # a shard begins at this key already
            return False
        return True

    def _merge(self, action: Action) -> bool:
        open_shards = self._open_shards()
        if len(open_shards) < 2:
            return False
        place = min(int(action.where * (len(open_shards) - 1)), len(open_shards) - 2)
        self.service.engine.merge_shards(TABLE, open_shards[place], open_shards[place + 1])
        return True

    def _open_shards(self) -> list[str]:
        return [shard.shard_id for shard in self.service.engine.shards(TABLE) if shard.is_open]

    # --- the end -------------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        self.note("outside", "calm")
        self.network.calm()
        self._is_writing = False
        self.laws.process_seconds = CALM_PROCESS_SECONDS
        if not any(process.is_alive and not process.is_leaving for process in self.processes):
            self._start(Action(at=self.now, do=Do.START, who="last"))

    def _settle(self) -> None:
        began = self.now
        limit = SETTLE_DURATIONS * self.plan.duration_seconds
        left = self.agenda.wait(lambda: self._unread() or self._unassigned(), limit, LOOK_SECONDS)
        if left:
            raise LawBroken("recovery", "", "; ".join(left[:5]))
        self.recovery_seconds = self.now - began

    def _unread(self) -> list[str]:
        base = range(self.plan.keys) if self.plan.tunnel != CHANGES else ()
        written = self._written if self.plan.tunnel != BASE else {}
        furthest = self.laws.order.furthest
        left = [f"row {key} of the full data" for key in base if key not in self.laws.base]
        return left + [f"{key} up to {number}" for key, number in written.items() if furthest.get(key, 0) < number]

    def _unassigned(self) -> list[str]:
        """Return a text for each open channel without exactly one reader, and for an uneven spread of the readers."""
        tunnel: Tunnel = self.laws.tunnel
        if not tunnel.definition.has_stream:
            return []
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


_DO: Mapping[Do, Callable[[TunnelWorld, Action], bool]] = {
    Do.START: TunnelWorld._start,
    Do.CRASH: TunnelWorld._crash,
    Do.STOP: TunnelWorld._stop,
    Do.FREEZE: TunnelWorld._freeze,
    Do.END_SESSION: TunnelWorld._end_session,
    Do.SPLIT: TunnelWorld._split,
    Do.MERGE: TunnelWorld._merge,
}
