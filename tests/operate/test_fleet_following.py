"""The pace at which a fleet is followed, on a clock of the test's own."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest
from operate_scene import TABLE, Scene, read_shard

from streamclient.errors import StreamClientException
from streamclient.operate import fleet_following
from streamclient.operate.fleet_documents import FleetBook, verdict_document
from streamclient.operate.fleet_following import LONGEST_PAUSE_SECONDS, FleetFollower, FleetReading
from streamclient.operate.overview import Overview
from streamclient.operate.site import Site
from tests.patience import until


class Watch:
    """Stands in for ``FleetWatch``: takes a time, and fails when told so."""

    made: Watch

    def __init__(self, site: Site, monotonic: Any) -> None:
        Watch.made = self
        self.verdict = None
        self.now = 0.0
        self.takes = 0.0
        self.error: Exception | None = None
        self.readings = 0
        self.view: Any = None

    def next(self) -> Overview:
        self.readings += 1
        self.now += self.takes
        if self.error is not None:
            raise self.error
        view: Overview = self.view
        return view


@pytest.fixture
def view(scene: Scene) -> Overview:
    read_shard(scene)
    return fleet_following.FleetWatch(Site(scene.client, TABLE, "orders_status")).next()


def follower(monkeypatch: pytest.MonkeyPatch, view: Overview, chance: float = 0.0, **parts: Any) -> tuple[Any, Watch]:
    with monkeypatch.context() as patch:
        patch.setattr(fleet_following, "FleetWatch", Watch)
        given = {"noted": lambda reading: None, "made": lambda reading: None, **parts}
        site: Any = Site.__new__(Site)
        site.data_table = TABLE
        made = FleetFollower(site, monotonic=lambda: Watch.made.now, chance=lambda: chance, **given)
    Watch.made.view = view
    return made, Watch.made


def looked(made: FleetFollower) -> FleetReading:
    return made.look(lambda reading: reading)


@pytest.mark.parametrize(("takes", "pause"), [(0.0, 2.0), (0.1, 2.0), (0.2, 2.0), (1.0, 10.0), (30.0, 300.0)])
def test_the_next_reading_waits_for_two_seconds_or_ten_readings(
    monkeypatch: pytest.MonkeyPatch, view: Overview, takes: float, pause: float
) -> None:
    made, watch = follower(monkeypatch, view)
    watch.takes = takes
    assert looked(made).next_seconds == pause
    began = watch.now - takes
    watch.now = began + pause - 0.001
    assert (looked(made).round_seconds, watch.readings) == (takes, 1)
    watch.now = began + pause
    looked(made)

    assert watch.readings == 2


def test_what_is_made_of_a_reading_counts_as_well(monkeypatch: pytest.MonkeyPatch, view: Overview) -> None:
    def slow(reading: FleetReading) -> None:
        Watch.made.now += 3.0

    made, watch = follower(monkeypatch, view, made=slow)
    looked(made)
    watch.now = 29.9
    looked(made)
    assert watch.readings == 1
    watch.now = 30.0
    looked(made)
    assert watch.readings == 2


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_after_failures_the_pauses_double_and_the_last_good_reading_stays(
    monkeypatch: pytest.MonkeyPatch, view: Overview, chance: float
) -> None:
    made, watch = follower(monkeypatch, view, chance)
    good = looked(made)
    assert (good.view, good.problem, good.read_micros) == (view, None, view.facts.now_micros)
    watch.error, watch.now, watch.takes = StreamClientException("away\n"), 2.0, 1.0
    pauses = []
    for _ in range(8):
        failed = looked(made)
        pauses.append(failed.next_seconds)
        assert (failed.view, failed.read_micros, failed.problem) == (view, good.read_micros, "away\\n")
        watch.now += failed.next_seconds
    share = 1 - fleet_following.JITTER * chance
    assert pauses == [seconds * share for seconds in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0)]
    assert LONGEST_PAUSE_SECONDS == 60.0
    watch.error = None
    back = looked(made)

    assert (back.problem, back.next_seconds) == (None, 10.0)


def test_a_failure_that_is_no_failed_call_ends_nothing(monkeypatch: pytest.MonkeyPatch, view: Overview) -> None:
    def broken(reading: FleetReading) -> None:
        raise RuntimeError("a fault of this package")

    made, watch = follower(monkeypatch, view, noted=broken, made=broken)
    assert looked(made).problem is None
    watch.error, watch.now = RuntimeError("one more"), 2.0

    assert looked(made).problem == "reading the fleet failed inside the console; see its log"


def test_a_thread_reads_while_it_is_wanted_and_ends(monkeypatch: pytest.MonkeyPatch, view: Overview) -> None:
    calls: list[FleetReading] = []
    made, watch = follower(monkeypatch, view, made=calls.append)
    made.follow(wanted=False)
    assert made._thread is None
    made.follow(wanted=True)
    until(lambda: len(calls) == 1, "the first reading")
    made.follow(wanted=True, stirred=True)
    until(lambda: len(calls) == 2, "the same reading once more")
    assert watch.readings == 1
    made.hasten()
    until(lambda: watch.readings == 2, "a reading at once")
    made.follow(wanted=False)
    thread = made._thread
    assert thread is not None
    made.close()
    made.follow(wanted=True)
    assert not thread.is_alive()
    assert thread not in threading.enumerate()


def test_before_the_first_reading_every_document_says_so(scene: Scene) -> None:
    book = FleetBook(Site(scene.client, TABLE, "orders_status"))
    assert verdict_document({"orders": FleetReading()})["error"]["code"] == "not-read-yet"
    for kind in ("fleet", "story", "moves", "parked"):
        assert book.document(kind, FleetReading())["error"]["code"] == "not-read-yet"
        assert book.document(kind, FleetReading(problem="away"))["error"]["code"] == "unreadable"


def test_the_curve_of_the_lag_has_an_hour_in_at_most_120_points(view: Overview, scene: Scene) -> None:
    book = FleetBook(Site(scene.client, TABLE, "orders_status"))
    start = view.facts.now_micros
    for second in range(0, 3 * 3_600, 2):
        book._note_lag(start + second * 1_000_000, float(second))
    points = book.document("fleet", FleetReading(view=view))["lag"]

    assert 100 < len(points) <= 120
    assert points[-1] == [start + (3 * 3_600 - 2) * 1_000_000, 3 * 3_600 - 2.0]
    assert points[-1][0] - points[0][0] <= 3_600 * 1_000_000
    assert all(later[0] - sooner[0] >= 30_000_000 for sooner, later in pairwise(points[:-1]))
