"""Jobs at the times of cron expressions: which times those are, and what becomes of late ones and of errors."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

import pytest

from streamclient.base.cron import CronSchedule, check_expression, named_weekdays
from streamclient.errors import ConfigurationError
from tests.patience import PATIENCE_SECONDS, run_job, until

MONDAY = datetime(2024, 1, 1, tzinfo=timezone.utc)


def times(expression: str, count: int) -> list[str]:
    """The first times of an expression from a Monday on, as weekday, day and hour."""
    schedule = CronSchedule("test")
    schedule.add("job", expression, lambda: None)
    trigger = schedule.scheduler.get_jobs()[0].trigger

    def all_times() -> Any:
        now, previous = MONDAY, None
        while True:
            previous = trigger.get_next_fire_time(previous, now)
            yield previous
            now = previous + timedelta(seconds=1)

    return [f"{moment:%a %d %H:%M}" for moment in islice(all_times(), count)]


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("0 4 * * 0", ["Sun 07 04:00", "Sun 14 04:00"]),
        ("0 4 * * 7,3", ["Wed 03 04:00", "Sun 07 04:00", "Wed 10 04:00"]),
        ("0 4 * * 5-7", ["Fri 05 04:00", "Sat 06 04:00", "Sun 07 04:00", "Fri 12 04:00"]),
        ("0 4 * * 0-2", ["Mon 01 04:00", "Tue 02 04:00", "Sun 07 04:00", "Mon 08 04:00"]),
        ("0 4 * * */2", ["Tue 02 04:00", "Thu 04 04:00", "Sat 06 04:00", "Sun 07 04:00"]),
        ("0 4 * * 1-5/2", ["Mon 01 04:00", "Wed 03 04:00", "Fri 05 04:00", "Mon 08 04:00"]),
        ("0 4 * * sat", ["Sat 06 04:00", "Sat 13 04:00"]),
        ("30 */6 * * *", ["Mon 01 00:30", "Mon 01 06:30", "Mon 01 12:30"]),
        ("0 0 4 * fri", ["Thu 04 00:00", "Fri 05 00:00", "Fri 12 00:00"]),
        ("0 0 */2 * 1", ["Mon 01 00:00", "Mon 15 00:00", "Mon 29 00:00"]),
    ],
)
def test_times_are_those_of_cron(expression: str, first: list[str]) -> None:
    """The scheduler counts weekdays from Monday, and wants a day that both fields name."""
    assert times(expression, len(first)) == first


def test_what_says_nothing_about_weekdays_in_numbers_stays_as_it_is() -> None:
    assert named_weekdays("*/5 4 1 2 *") == "*/5 4 1 2 *"
    assert named_weekdays("0 4 * * mon-fri") == "0 4 * * mon-fri"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("hourly", "cron must be a cron expression of five fields, such as '0 * * * *', not 'hourly': "),
        (60, "'0 * * * *', not 60: it is not a string"),
        ("", "cron must be a cron expression of five fields"),
        ("* * * *", "cron must be a cron expression of five fields"),
        ("61 * * * *", "cron must be a cron expression of five fields"),
        ("0 4 * * 8", "cron must be a cron expression of five fields"),
        ("0 4 * * 5-1", "cron must be a cron expression of five fields"),
        ("0 4 * * 1-5/0", "cron must be a cron expression of five fields"),
        ("0 0 30 2 *", "cron must be a cron expression that fires, not '0 0 30 2 *'"),
    ],
)
def test_an_expression_that_is_none_is_refused_with_its_name(given: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_expression("cron", given)

    assert complaint in str(raised.value)


def test_a_job_that_fails_is_logged_and_run_again(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []

    def fail() -> None:
        runs.append(len(runs))
        raise ValueError("not today")

    schedule = CronSchedule("test")
    schedule.add("beat", "0 0 1 1 *", fail)
    schedule.start()
    with caplog.at_level(logging.DEBUG):
        run_job(schedule, "beat")
        run_job(schedule, "beat")
        assert schedule.stop(PATIENCE_SECONDS)

    assert runs == [0, 1]
    assert caplog.text.count("job beat failed") == 2
    assert "not today" in caplog.text
    assert [record.name for record in caplog.records if "apscheduler" in record.name] == [], "its own lines"


def test_however_many_times_were_missed_there_is_one_run() -> None:
    runs: list[int] = []
    schedule = CronSchedule("test")
    schedule.add("slept", "* * * * *", lambda: runs.append(1))
    schedule.add("other", "0 0 1 1 *", lambda: None)
    schedule.start()
    run_job(schedule, "slept", late_by=timedelta(hours=8))
    planned = schedule.scheduler.get_job("slept").next_run_time
    run_job(schedule, "other")
    schedule.stop()

    assert planned > datetime.now(timezone.utc) - timedelta(seconds=PATIENCE_SECONDS)
    assert len(runs) <= 2, "the minute may have ended meanwhile"


def test_a_stop_is_bounded_and_nothing_begins_after_it() -> None:
    begun, release = threading.Event(), threading.Event()
    late: list[int] = []
    schedule = CronSchedule("test")
    schedule.add("long", "0 0 1 1 *", lambda: (begun.set(), release.wait(PATIENCE_SECONDS)))
    schedule.add("behind", "0 0 1 1 *", lambda: late.append(1))
    schedule.start()
    make_due(schedule, "long")
    assert begun.wait(PATIENCE_SECONDS)
    make_due(schedule, "behind")
    until(lambda: len(schedule._pool._calls) == 1)

    assert not schedule.stop(0.0)
    release.set()
    assert schedule.stop(PATIENCE_SECONDS)
    assert late == []
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("test-cron")]


def test_a_schedule_that_was_never_started_is_stopped_without_ado() -> None:
    schedule = CronSchedule("test")
    schedule.add("job", "0 0 1 1 *", lambda: None)

    assert schedule.stop()


def make_due(schedule: CronSchedule, name: str) -> None:
    schedule.scheduler.modify_job(name, next_run_time=datetime.now(timezone.utc))
