"""Jobs that run at the times of cron expressions, by APScheduler and the wall clock.

Leases do not depend on this module: the owner thread times them with a clock that never steps.
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
"""The logger that APScheduler gets. It is silent, because APScheduler would log every job that is added or run.
``CronSchedule`` logs errors itself."""
_scheduler_log.setLevel(logging.CRITICAL + 1)

WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")

_NUMBERED_DAYS = re.compile(r"(?:(?P<first>[0-7])(?:-(?P<last>[0-7]))?|\*)(?:/(?P<step>[1-9]\d*))?")
"""The pattern of a part of a cron expression's fifth field. Such a part gives weekdays as numbers, such as ``1-5``."""


def named_weekdays(expression: str) -> str:
    """Return a cron expression with names of weekdays in place of their numbers.

    In cron, 0 and 7 are Sunday. In APScheduler, 0 is Monday. Names mean the same days in cron and in APScheduler.
    """
    *others, last = expression.split() or [""]
    return " ".join([*others, ",".join(_named(part) for part in last.split(","))])


def _named(part: str) -> str:
    match = _NUMBERED_DAYS.fullmatch(part)
    if match is None or part == "*":
        return part
    first, step = int(match["first"] or 0), int(match["step"] or 1)
    is_one = match["first"] is not None and match["step"] is None
    last = int(match["last"] or (first if is_one else len(WEEKDAYS) - 2))
    return ",".join(WEEKDAYS[first : last + 1 : step]) or part


def check_expression(name: str, expression: object) -> None:
    """Refuse a cron expression that is invalid or never fires; ``name`` is the name of the setting.

    Raises:
        ConfigurationError: the expression is invalid, or never fires.
    """
    now = datetime.now(timezone.utc)
    if _trigger(name, expression).get_next_fire_time(None, now) is None:
        raise ConfigurationError(
            f"{name} must be a cron expression that fires, not {checks.shown(expression)}: this date does not exist"
        )


def _trigger(name: str, expression: object) -> Any:
    from apscheduler.triggers.combining import OrTrigger  # noqa: PLC0415
    from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415

    try:
        if not isinstance(expression, str):
            raise ValueError("it is not a string")
        fields = named_weekdays(expression).split()
        made = CronTrigger.from_crontab(" ".join(fields), timezone=timezone.utc)
        if fields[2][0] == "*" or fields[4][0] == "*":
            return made
        # If an expression names days of the month and weekdays, cron fires on days that match one of the two fields.
        # APScheduler would fire only on days that match both fields, so each field gets its own trigger.
        either = [*fields[:4], "*"], [*fields[:2], "*", *fields[3:]]
        return OrTrigger([CronTrigger.from_crontab(" ".join(fields), timezone=timezone.utc) for fields in either])
    except ValueError as error:
        raise ConfigurationError(
            f"{name} must be a cron expression of five fields, such as '0 * * * *', not {checks.shown(expression)}: "
            f"{error}"
        ) from error


class CronSchedule:
    """A schedule that runs jobs at the times of cron expressions, in UTC, one job at a time.

    If the machine slept or its clock was set, a job runs once for all of its missed times. If a job's time comes while
    the job still runs, that time is skipped. An error of a job is logged and does not end the schedule. The schedule
    does not keep the process alive.

    Args:
        name: the beginning of the name of the thread that runs the jobs.
    """

    def __init__(self, name: str) -> None:
        # Imported only here: the import is slow, and most programs plan no jobs.
        from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

        self._pool = DaemonPool(f"{name}-cron", 1)
        self._is_stopped = False
        self.scheduler: Any = BackgroundScheduler(
            logger=_scheduler_log,
            executors={"default": _quiet_executor(self._pool)},
            # With a grace time of None, APScheduler runs a late job. With a number, it may drop the run with a warning.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            timezone=timezone.utc,
            daemon=True,
        )
        """APScheduler's scheduler. Its jobs have the names that were given to ``add``."""

    def add(self, name: str, expression: str, function: Callable[[], object]) -> None:
        """Plan to run ``function`` at the times of ``expression``; each job of this schedule needs its own ``name``.

        Raises:
            ConfigurationError: the expression is invalid, or never fires; the message names the job.
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
        """Start the thread that runs each job at its times.

        Raises:
            NoThreadError: the system refused the thread.
        """
        try:
            self.scheduler.start()
        except RuntimeError as error:
            with suppress(RuntimeError):  # shutdown raises when it joins the thread, which never started
                self.scheduler.shutdown(wait=False)
            if is_refused_thread(error):
                raise NoThreadError.of("jobs that are planned by the clock", error) from error
            raise

    def stop(self, wait_seconds: float | None = None) -> bool:
        """Stop the schedule, and wait for a running job; return whether no job runs any more.

        ``wait_seconds`` limits the wait; ``None`` sets no limit. The method may be called twice, and without ``start``.
        """
        self._is_stopped = True
        if self.scheduler.running:
            self.scheduler.shutdown(wait=False)
        return self._pool.join(wait_seconds)


def _quiet_executor(pool: DaemonPool) -> Any:
    """Return an executor for APScheduler that runs jobs in ``pool``, and logs to the silent logger."""
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
            except NoThreadError as error:  # APScheduler would log this error to the silent logger
                _log.error("job %s was not run; it is run again at its next time: %s", job.name, error)

    return QuietExecutor()
