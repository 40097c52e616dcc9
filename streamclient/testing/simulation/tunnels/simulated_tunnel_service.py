"""The simulated Tunnel Service: the local server's engine on simulated time, called through a faulty network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, field

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.server.engine import Engine
from streamclient.server.server_clock import Clock
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import Limits
from streamclient.server.storage_memory import MemoryStorage
from streamclient.testing.simulation.kernel import Agenda, Dice, Network
from streamclient.testing.simulation.simulated_faults import Fate
from streamclient.tunnel.tunnel_errors import typed
from streamclient.wire import schema
from streamclient.wire.service_errors import classify, from_answer

TABLE = "t"
START_MICROS = 1_700_000_000_000_000
PAGE_RECORDS = 7
"""The largest number of records in a page. The number is small, so that a client reads a channel in many steps."""

Answer = Callable[[Any, Exception | None], None]
"""A function that gets the result of a call: the response and ``None``, or ``None`` and the error."""


@define(eq=False)
class SimulatedService:
    """The Tunnel Service on simulated time. The engine of the local server carries out the calls."""

    agenda: Agenda
    network: Network
    engine: Engine = field(init=False)
    tunnel_id: str = ""

    def __attrs_post_init__(self) -> None:
        clock = Clock(lambda: START_MICROS + round(self.agenda.now * MICROS_PER_SECOND))
        limits = Limits(range_rows=PAGE_RECORDS, tunnel_page_records=PAGE_RECORDS, tunnel_base_channel_bytes=400)
        self.engine = Engine(clock=clock, storage=MemoryStorage(), limits=limits)

    def now(self, operation: str, request: Any) -> Any:
        """Carry out a call immediately, without the simulated network, and return the response.

        The simulated world itself uses this method, for example to write rows.
        """
        known = {**schema.OPERATIONS, **schema.TUNNEL_OPERATIONS}[operation]
        return schema.parse(known.response, self.engine.execute(operation, request.SerializeToString()))

    def call(self, who: str, dice: Dice, verb: str, request: Any, answer: Answer) -> None:
        """Carry out the call of the client ``who`` as far as the network allows; call ``answer`` exactly once."""
        network, fate = self.network, self.network.fate(who, dice)
        if fate is Fate.THROTTLED:
            refusal = _refused(503, "OTSTunnelServerUnavailable", "away")
            self.agenda.after(2.0 * network.delay(who, dice), answer, None, refusal)
            return
        if fate is Fate.FINE:
            self.agenda.after(network.delay(who, dice), self._arrive, who, dice, verb, request, answer)
            return
        seconds = network.timeout(dice)
        self.agenda.after(seconds, answer, None, classify(TimeoutError("no answer"), write=True, client=None))
        if fate is Fate.LATE_REQUEST:
            self.agenda.after(seconds + network.lateness(dice), self._execute, verb, request)
        elif not fate.is_unsent:
            self.agenda.after(network.delay(who, dice), self._execute, verb, request)

    def _arrive(self, who: str, dice: Dice, verb: str, request: Any, answer: Answer) -> None:
        response, error = self._execute(verb, request)
        self.agenda.after(self.network.delay(who, dice), answer, response, error)

    def _execute(self, verb: str, request: Any) -> tuple[Any, Exception | None]:
        try:
            return self.now(f"tunnel/{verb}", request), None
        except ServiceError as error:
            return None, _refused(error.http_status, error.code, error.message)


def _refused(status: int, code: str, message: str) -> Exception:
    return typed(from_answer(code, message, write=True, http_status=status))
