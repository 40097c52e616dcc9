"""What the program's log raises: lines are lost, and nothing else."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamclient import ClientConfig, IMetrics, MemoryLeaseManager, StreamConfig, Worker
from streamclient.base import logs
from streamclient.testing.fakes import FakeStream
from tests.patience import PATIENCE_SECONDS
from tests.placed_records import make_record
from tests.process.test_refused_threads import Careful, Seen

RECORDS = 120
LOGGER = "streamclient"


class Raising(logging.Handler):
    """Raises from a record on, as a handler that sends records to where nobody listens any more."""

    def __init__(self, error: BaseException, after: int) -> None:
        super().__init__()
        self.error, self.after, self.count = error, after, 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        if self.count > self.after:
            raise self.error


def a_handler(error: BaseException, after: int) -> Iterator[None]:
    handler = Raising(error, after)
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)
    assert handler.count > after


def a_filter_of_a_handler(error: BaseException, after: int) -> Iterator[None]:
    handler, inner = logging.NullHandler(), Raising(error, after)
    handler.addFilter(lambda record: bool(inner.emit(record)))  # type: ignore[func-returns-value]
    logging.getLogger(LOGGER).addHandler(handler)
    yield
    logging.getLogger(LOGGER).removeHandler(handler)


def a_filter_of_loggers(error: BaseException, after: int) -> Iterator[None]:
    inner = Raising(error, after)
    names = [name for name in logging.root.manager.loggerDict if name.startswith("streamclient.worker")]

    def look(record: logging.LogRecord) -> bool:
        inner.emit(record)
        return True

    for name in names:
        logging.getLogger(name).addFilter(look)
    yield
    for name in names:
        logging.getLogger(name).removeFilter(look)


def a_formatter(error: BaseException, after: int) -> Iterator[None]:
    inner = Raising(error, after)

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            inner.emit(record)

    handler = Broken()
    logging.getLogger(LOGGER).addHandler(handler)
    yield
    logging.getLogger(LOGGER).removeHandler(handler)


def a_factory_of_records(error: BaseException, after: int) -> Iterator[None]:
    inner, before = Raising(error, after), logging.getLogRecordFactory()

    def make(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = before(*arguments, **named)
        inner.emit(record)
        return record

    logging.setLogRecordFactory(make)
    yield
    logging.setLogRecordFactory(before)


@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize(
    "error", [ConnectionResetError("no log server"), ValueError("bad"), SystemExit(3), KeyboardInterrupt()]
)
@pytest.mark.parametrize(
    "play", [a_handler, a_filter_of_a_handler, a_filter_of_loggers, a_formatter, a_factory_of_records]
)
def test_a_worker_lives_though_its_log_raises(
    play: Callable[..., Iterator[None]], error: BaseException, after: int
) -> None:
    """In each of its threads. What is no ``Exception`` may be a signal's in the main thread, and passes there."""
    if play is a_factory_of_records and not isinstance(error, Exception):
        pytest.skip("passed on, whatever the thread: a factory has no reason to raise it")
    seen, stream = Seen(), FakeStream(shard_ids=("shard-1", "shard-2", "shard-3"))
    seen.go_on.set()
    for shard in range(1, 4):
        stream.append(f"shard-{shard}", *(make_record(f"{shard}-{n}", n) for n in range(RECORDS // 3)))
    config = StreamConfig(client=None, data_table_name="orders", status_table_name="status", max_records=5)
    quick = ClientConfig(taker_interval_millis=100, sync_shard_interval_millis=100)
    worker = Worker("w", quick, config, lambda: Careful(seen), None, MemoryLeaseManager(), stream_api=stream)
    thread = threading.Thread(target=worker.run)
    root_level = logging.getLogger(LOGGER).level
    logging.getLogger(LOGGER).setLevel(logging.DEBUG)
    try:
        with contextmanager(play)(error, after):
            thread.start()
            assert worker.wait(PATIENCE_SECONDS, until=lambda: len(seen.keys) == RECORDS)
            assert worker.health.is_healthy
            stopper = threading.Thread(target=worker.shutdown)  # not the main thread, in which a signal may come
            stopper.start()
            stopper.join(PATIENCE_SECONDS)
            thread.join(PATIENCE_SECONDS)
    finally:
        logging.getLogger(LOGGER).setLevel(root_level)

    assert seen.keys.total() == RECORDS
    assert worker.exception is None


def test_lost_lines_are_told_once_and_not_where_that_is_switched_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_told", threading.Lock())
    logger, handler = logs.logger("streamclient.test.raising"), Raising(ConnectionResetError("gone"), 0)
    logger.addHandler(handler)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.error("lost")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(logging, "raiseExceptions", True)
    for _ in range(3):
        logger.error("lost")

    assert capsys.readouterr().err == (
        "streamclient: a handler, filter or formatter of the log raised ConnectionResetError: gone; lines are missing "
        "from the log, nothing else is disturbed, and further failures are not reported\n"
    )
    logger.removeHandler(handler)


def test_a_signal_in_the_main_thread_passes() -> None:
    logger, handler = logs.logger("streamclient.test.signal"), Raising(SystemExit(143), 0)
    logger.addHandler(handler)
    try:
        with pytest.raises(SystemExit):
            logger.error("interrupted")
    finally:
        logger.removeHandler(handler)


def test_a_steady_logger_tells_who_logged_and_stays_of_the_kind_of_the_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Own(logging.Logger):
        """The program's."""

    before = logging.getLoggerClass()
    logging.setLoggerClass(Own)
    try:
        logger = logs.logger("streamclient.test.own")
    finally:
        logging.setLoggerClass(before)
    logger.error("here")

    assert isinstance(logger, Own)
    assert logs.logger("streamclient.test.own") is logger
    assert [record.filename for record in caplog.records] == ["test_raising_logs.py"]


def test_every_module_of_the_package_logs_by_a_steady_logger() -> None:
    """Read from the source, as a process has loaded some modules and not others."""
    package = Path(logs.__file__).parents[1]
    plain = re.compile(r"^_\w+ = logging\.getLogger\(__name__\)", re.MULTILINE)
    files = [path for path in package.rglob("*.py") if "samples" not in path.parts]

    assert len(files) > 300
    assert [str(path.relative_to(package)) for path in files if plain.search(path.read_text())] == []


class Raises(IMetrics):
    def increment(self, metric: object, amount: float = 1, /, **labels: str) -> None:
        raise ConnectionResetError("no collector")

    set = observe = forget = increment  # type: ignore[assignment]


def test_a_worker_lives_though_its_metrics_raise() -> None:
    seen, stream = Seen(), FakeStream()
    seen.go_on.set()
    stream.append("shard-1", *(make_record(str(n), n) for n in range(RECORDS)))
    config = StreamConfig(client=None, data_table_name="orders", status_table_name="status", max_records=5)
    worker = Worker(
        "w",
        ClientConfig(taker_interval_millis=100, metrics=Raises()),
        config,
        lambda: Careful(seen),
        None,
        MemoryLeaseManager(),
        stream_api=stream,
    )
    with worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: len(seen.keys) == RECORDS)
        assert worker.health.is_healthy
