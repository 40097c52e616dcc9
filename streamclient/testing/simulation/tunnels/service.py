"""The Tunnel Service of a simulated world: the local server's engine on simulated time, behind a bad network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from attrs import define, field, frozen
from tablestore.error import OTSServiceError

from streamclient.server.clock import Clock
from streamclient.server.engine import Engine
from streamclient.server.errors import ServiceError
from streamclient.server.limits import Limits
from streamclient.server.storage_memory import MemoryStorage
from streamclient.testing.simulation.agenda import Agenda
from streamclient.testing.simulation.dice import Dice
from streamclient.tunnel.errors import typed
from streamclient.wire import schema
from streamclient.wire.service_errors import classify

TABLE = "t"
START_MICROS = 1_700_000_000_000_000
PAGE_RECORDS = 7
"""Small pages, so that a channel is read in many steps."""

CALL_TIMEOUT_SECONDS = 4.0

Answer = Callable[[Any, Exception | None], None]
"""Gets the answer's message, or what went wrong."""


@frozen
class CallFaults:
    """Probabilities of what may go wrong with one call."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    late_request: float = 0.0
    unavailable: float = 0.0
    delay_seconds: float = 0.05


@define(eq=False)
class SimulatedService:
    """Carries calls out at simulated times. Everything the engine does is the production server's code."""

    agenda: Agenda
    rates: CallFaults
    injected: Counter[str]
    engine: Engine = field(init=False)
    tunnel_id: str = ""

    def __attrs_post_init__(self) -> None:
        clock = Clock(lambda: START_MICROS + round(self.agenda.now * 1_000_000))
        limits = Limits(range_rows=PAGE_RECORDS, tunnel_page_records=PAGE_RECORDS, tunnel_base_channel_bytes=400)
        self.engine = Engine(clock=clock, storage=MemoryStorage(), limits=limits)

    def now(self, operation: str, request: Any) -> Any:
        """Carry a call out at once, without a network: for the world itself."""
        known = {**schema.OPERATIONS, **schema.TUNNEL_OPERATIONS}[operation]
        return schema.parse(known.response, self.engine.execute(operation, request.SerializeToString()))

    def call(self, dice: Dice, verb: str, request: Any, answer: Answer) -> None:
        """Carry a call out as the network lets it; ``answer`` follows exactly once."""
        fate = dice.random()
        rates = self.rates
        kinds = (
            ("lost request", rates.lost_request),
            ("lost answer", rates.lost_answer),
            ("late request", rates.late_request),
            ("unavailable", rates.unavailable),
        )
        kind = ""
        for name, rate in kinds:
            if fate < rate:
                kind = name
                break
            fate -= rate
        if kind:
            self.injected[kind] += 1
        way = dice.delay(rates.delay_seconds)
        self.agenda.after(way, self._arrive, dice, kind, verb, request, answer)

    def _arrive(self, dice: Dice, kind: str, verb: str, request: Any, answer: Answer) -> None:
        back = dice.delay(self.rates.delay_seconds)
        if kind == "unavailable":
            self.agenda.after(back, answer, None, _refused(503, "OTSTunnelServerUnavailable", "away"))
        elif kind == "lost request":
            self.agenda.after(CALL_TIMEOUT_SECONDS, answer, None, _no_answer())
        elif kind == "late request":
            self.agenda.after(CALL_TIMEOUT_SECONDS, answer, None, _no_answer())
            self.agenda.after(CALL_TIMEOUT_SECONDS * (0.5 + 3 * dice.random()), self._execute, verb, request)
        else:
            response, error = self._execute(verb, request)
            if kind == "lost answer":
                self.agenda.after(CALL_TIMEOUT_SECONDS, answer, None, _no_answer())
            else:
                self.agenda.after(back, answer, response, error)

    def _execute(self, verb: str, request: Any) -> tuple[Any, Exception | None]:
        try:
            return self.now(f"tunnel/{verb}", request), None
        except ServiceError as error:
            return None, _refused(error.http_status, error.code, error.message)


def _refused(status: int, code: str, message: str) -> Exception:
    return typed(classify(OTSServiceError(status, code, message), write=True))


def _no_answer() -> Exception:
    return classify(TimeoutError("no answer"), write=True)
