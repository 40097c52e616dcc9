"""What people plan by the wall clock: jobs at the times of cron expressions, driven by APScheduler.

Nothing on which a lease depends is here: that is timed by the owner thread, whose clock never steps.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from streamclient.base import checks, logs
from streamclient.base.pools import DaemonPool
from streamclient.errors import ConfigurationError, NoThreadError, is_refused_thread

_log = logs.logger(__name__)

_scheduler_log = logs.logger(f"{__name__}.apscheduler")
"""Where APScheduler's own lines would go: every job added and run, which says nothing to anybody. What is wrong is
logged here by ``CronSchedule``."""
_scheduler_log.setLevel(logging.CRITICAL + 1)

WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")

_NUMBERED_DAYS = re.compile(r"(?:(?P<first>[0-7])(?:-(?P<last>[0-7]))?|\*)(?:/(?P<step>[1-9]\d*))?")
"""One part of the fifth field of a cron expression, if it names weekdays by numbers."""


def named_weekdays(expression: str) -> str:
    """The expression with names for numbers of weekdays: 0 and 7 are Sunday in cron, and 0 is Monday in APScheduler."""
    *others, last = expression.split() or [""]
    return " ".join([*others, ",".join(_named(part) for part in last.split(","))])


def _named(part: str) -> str:
    found = _NUMBERED_DAYS.fullmatch(part)
    if found is None or part == "*":
        return part
    first, step = int(found["first"] or 0), int(found["step"] or 1)
    is_one = found["first"] is not None and found["step"] is None
    last = int(found["last"] or (first if is_one else len(WEEKDAYS) - 2))
    return ",".join(WEEKDAYS[first : last + 1 : step]) or part


def check_expression(name: str, expression: object) -> None:
    """Refuse what is no cron expression, or one whose time never comes; ``name`` is that of the setting.

    Raises:
        ConfigurationError: it is one of these.
    """
    now = datetime.now(timezone.utc)
    if _trigger(name, expression).get_next_fire_time(None, now) is None:
        raise ConfigurationError(
            f"{name} must be a cron expression whose time comes, not {checks.shown(expression)}: there is no such day"
        )


def _trigger(name: str, expression: object) -> Any:
    from apscheduler.triggers.combining import OrTrigger  # noqa: PLC0415
    from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415

    try:
        if not isinstance(expression, str):
            raise ValueError("it is no string")
        fields = named_weekdays(expression).split()
        made = CronTrigger.from_crontab(" ".join(fields), timezone=timezone.utc)
        if fields[2][0] == "*" or fields[4][0] == "*":
            return made
        # Cron takes a day that either of the two fields names, APScheduler one that both do.
        either = [*fields[:4], "*"], [*fields[:2], "*", *fields[3:]]
        return OrTrigger([CronTrigger.from_crontab(" ".join(each), timezone=timezone.utc) for each in either])
    except ValueError as error:
        raise ConfigurationError(
            f"{name} must be a cron expression of five fields, such as '0 * * * *', not {checks.shown(expression)}: "
            f"{error}"
        ) from error


class CronSchedule:
    """Runs jobs at the times of cron expressions, in UTC, one at a time in one thread, which is there while they run.

    Of times that were missed, because the machine slept or its clock was set, one is made up for. A time that comes
    while the same job still runs is left out. An error of a job is logged and ends nothing. It keeps no process alive.

    Args:
        name: begins the name of the thread.
    """

    def __init__(self, name: str) -> None:
        # Imported here: it takes a tenth of the SDK's time, and most programs plan nothing by the wall clock.
        from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

        self._pool = DaemonPool(f"{name}-cron", 1)
        self._is_stopped = False
        self.scheduler: Any = BackgroundScheduler(
            logger=_scheduler_log,
            executors={"default": _quiet_executor(self._pool)},
            # Without a grace time of None a late run would be dropped, with no more than a warning.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            timezone=timezone.utc,
            daemon=True,
        )
        """APScheduler's own; its jobs have the names that were given."""

    def add(self, name: str, expression: str, function: Callable[[], object]) -> None:
        """Plan a job, which has a name of its own here.

        Raises:
            ConfigurationError: the expression is none, or names a time that never comes; the message names the job.
        """
        check_expression(name, expression)

        def run() -> None:
            if self._is_stopped:
                return
            try:
                function()
            except Exception:
                _log.exception("job %s failed; it is run again at its next time", name)

        self.scheduler.add_job(run, _trigger(name, expression), id=name, name=name)

    def start(self) -> None:
        """Begin to run by the clock; returns at once.

        Raises:
            NoThreadError: the system refused its thread.
        """
        try:
            self.scheduler.start()
        except RuntimeError as error:
            with suppress(RuntimeError):  # it waits for the thread that there is not
                self.scheduler.shutdown(wait=False)
            if is_refused_thread(error):
                raise NoThreadError.of("jobs that are planned by the clock", error) from error
            raise

    def stop(self, wait_seconds: float | None = None) -> bool:
        """Run no more, and wait for a run that is under way, by default for as long as it takes; whether it has ended.

        Safe to call twice, and without ``start``.
        """
        self._is_stopped = True
        if self.scheduler.running:
            self.scheduler.shutdown(wait=False)
        return self._pool.join(wait_seconds)


def _quiet_executor(pool: DaemonPool) -> Any:
    """Runs jobs in a pool, and logs where its scheduler does, not under a name of its own in the program's log."""
    from apscheduler.executors.pool import BasePoolExecutor  # noqa: PLC0415

    class QuietExecutor(BasePoolExecutor):  # type: ignore[misc]  # the library has no types
        def __init__(self) -> None:
            super().__init__(pool)

        def start(self, scheduler: Any, alias: str) -> None:
            super().start(scheduler, alias)
            self._logger = _scheduler_log

        def submit_job(self, job: Any, run_times: Any) -> None:
            try:
                super().submit_job(job, run_times)
            except NoThreadError as error:  # which its scheduler would log where nobody listens
                _log.error("job %s was not run; it is run again at its next time: %s", job.name, error)

    return QuietExecutor()
