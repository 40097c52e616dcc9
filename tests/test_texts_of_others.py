"""Texts of others are data: wherever one shows, it stands on one line, obeys nothing, and has a bounded length."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tablestore.error import OTSClientError, OTSServiceError

from streamclient.base import logs
from streamclient.base.outages import OutageLog
from streamclient.base.reasons import MOST_TRACEBACK_CHARACTERS, Cause, Raised, Reason, described, text_of
from streamclient.cli.tail_command import _line
from streamclient.cli.terminal.layout import Column
from streamclient.cli.terminal.output import ProgressLine, complain, print_json, print_table, print_text
from streamclient.core.worker_info import ShardTrouble, WorkerInfo
from streamclient.errors import (
    MOST_ERROR_CHARACTERS,
    ApplicationException,
    ConfigurationError,
    DependencyException,
    FencedException,
    StreamClientError,
    StreamClientException,
    TrimmedDataException,
    WorkerFailedError,
    printable,
)
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.tunnel.tunnel_errors import typed
from streamclient.wire.service_errors import classify, from_answer

EVIL = "a\x1b[2J\x07\r\n2026-01-31 ERROR forged\x00\x9b1m\x7f\u202e\u2066\u200f\u2028\ud800z"
ESCAPED = r"a\x1b[2J\x07\r\n2026-01-31 ERROR forged\x00\x9b1m\x7f\u202e\u2066\u200f\u2028\ud800z"
LONG = "10 MiB " + "x" * 10 * (1 << 20)


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


ERRORS: dict[str, Callable[[str], Exception]] = {
    "service": lambda text: classify(OTSServiceError(400, "OTSParameterInvalid", text), write=False, client=None),
    "its code": lambda text: classify(OTSServiceError(503, text, "busy"), write=True, client=None),
    "its request id": lambda text: classify(
        OTSServiceError(503, "OTSServerBusy", "busy", text), write=True, client=None
    ),
    "SDK": lambda text: classify(OTSClientError(text, 200), write=False, client=None),
    "network": lambda text: classify(ConnectionResetError(text), write=False, client=None),
    "outside": lambda text: classify(ValueError(text), write=False, client=None),
    "row": lambda text: from_answer("OTSServerBusy", text, write=True),
    "trimmed": lambda text: from_answer("OTSTrimmedDataAccess", text, write=False),
    "tunnel": lambda text: typed(from_answer("OTSTunnelExpired", text, write=False)),
    "worker": lambda text: WorkerFailedError(text, {"t": ValueError(text)}),
    "application": lambda text: raised(ApplicationException(f"{text}"), ValueError(text)),
    "setting": lambda text: ConfigurationError(f"there is no table {text}"),
    "fence": FencedException,
    "loss": TrimmedDataException,
    "client": lambda text: raised(StreamClientException(text), OTSServiceError(400, text, text)),
    "user": lambda text: raised(ValueError(text)),
    "user's cause": lambda text: raised(RuntimeError("no"), OSError(text)),
}


def formatted(error: Exception, *, level: int = logging.ERROR, **options: Any) -> str:
    """What a handler of the user's writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        logs.logger("streamclient.worker.worker").log(level, "worker %s: %s", "w", error, **options)
    finally:
        root.removeHandler(handler)
    return stream.getvalue()


def outage(error: Exception) -> str:
    stream = io.StringIO()
    logger = logging.Logger("elsewhere")
    logger.addHandler(logging.StreamHandler(stream))
    OutageLog(logger).log(logging.WARNING, "x", "no answer: %s", error)
    return stream.getvalue()


def stored(error: Exception) -> str:
    """What the status table gets of it, read again."""
    raised = Raised.of(error)
    reason = Reason(Cause.READING_FAILED, "", raised.text)
    info = WorkerInfo(shards={"s": ShardTrouble(text_of(reason), "reading", (reason,))}, trouble=raised.text)
    found = WorkerInfo.from_json(info.to_json())
    (told,) = found.shards["s"].reasons
    return " ".join([found.trouble, found.shards["s"].reason, told.detail, told.subject])


def printed(show: Callable[[str], None]) -> Callable[[Exception], str]:
    def run(error: Exception) -> str:
        with pytest.MonkeyPatch.context() as patched:
            stream = io.StringIO()
            patched.setattr(sys, "stdout", stream)
            patched.setattr(sys, "stderr", stream)
            show(str(error))
            return stream.getvalue()

    return run


PLACES: dict[str, Callable[[Exception], str]] = {
    "exception": lambda error: str(error) if isinstance(error, StreamClientError) else described(error),
    "its parts": lambda error: f"{getattr(error, 'code', '')} {getattr(error, 'request_id', '')}",
    "status": lambda error: text_of(Reason(Cause.READING_FAILED, "", described(error))),
    "code of a status": lambda error: Raised.of(error).code,
    "status table": stored,
    "log": formatted,
    "outage": outage,
    "standard output": printed(print_text),
    "standard error": printed(complain),
    "table": printed(lambda text: print_table((Column("A"),), [(text,)], "")),
    "progress": printed(lambda text: ProgressLine().show(text)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("source", ERRORS)
def test_a_text_obeys_nothing_where_it_shows(source: str, place: str) -> None:
    shown = PLACES[place](ERRORS[source](EVIL))
    lines = shown.splitlines()

    if place == "table":
        assert lines.pop(0) == "A"
    assert all(line.isprintable() for line in lines), shown
    assert len(lines) <= 1, shown
    has_it = source != "user's cause" and place not in ("its parts", "code of a status")
    assert not has_it or ESCAPED in shown


BOUNDED = [place for place in PLACES if place not in ("standard output", "standard error", "table", "progress")]


@pytest.mark.parametrize("place", BOUNDED)
@pytest.mark.parametrize("source", ERRORS)
def test_a_text_is_cut_before_it_goes_anywhere(source: str, place: str) -> None:
    """What is printed is the text of an error of this package, which is cut already, or a value that was asked for."""
    size = len(PLACES[place](ERRORS[source](LONG)))
    assert size < 4 * MOST_ERROR_CHARACTERS


@pytest.mark.parametrize("source", ERRORS)
def test_a_traceback_has_lines_of_its_own_alone(source: str) -> None:
    error = raised(ERRORS[source](EVIL))
    lines = Raised.of(error).traceback.split("\n")
    logged = formatted(error, exc_info=error).split("\n")

    for line in [*lines, *logged]:
        assert line.isprintable()
        assert not line.startswith("2026")
    assert any(line.startswith("Traceback") for line in logged)
    long = raised(ERRORS[source](LONG))
    sizes = len(Raised.of(long).traceback), len(formatted(long, exc_info=long))
    assert sizes[0] <= MOST_TRACEBACK_CHARACTERS
    assert sizes[1] < 2 * MOST_TRACEBACK_CHARACTERS


def test_a_reason_names_what_others_called_themselves_plainly() -> None:
    """The names of workers and shards come from the status table and the service."""
    shown = text_of(Reason(Cause.ASKED_FOR, EVIL), Reason(Cause.PARENT, EVIL, EVIL))

    assert shown.isprintable()
    assert shown.count(ESCAPED) == 3


def test_what_is_plain_stays_as_it_is_and_what_is_escaped_is_not_escaped_again() -> None:
    plain = "Zoë: 漢字 😀 C:\\new \\x1b"

    assert printable(plain) is plain
    assert printable(EVIL) == ESCAPED == printable(printable(EVIL))
    cut = printable("begins" + LONG + "ends")
    assert len(cut) <= MOST_ERROR_CHARACTERS
    assert cut.startswith("begins")
    assert cut.endswith("ends")
    assert "characters left out" in cut
    assert printable(cut) == cut
    assert len(printable("\U000e0001" * 100_000)) <= MOST_ERROR_CHARACTERS
    is_same = printable(LONG, None) == LONG
    assert is_same


def test_an_error_of_several_lines_has_an_argument_for_each() -> None:
    error = ConfigurationError("it cannot work:", f"  {EVIL}", "  no")

    assert str(error) == f"it cannot work:\n  {ESCAPED}\n  no"
    assert str(StreamClientError()) == ""
    assert str(DependencyException("busy")) == "busy"


def test_documents_for_programs_keep_values_as_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in ("utf-8", "latin-1"):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding))
        print_json({"name": EVIL, "far": "\U000e0001", "plain": "Zoë 漢字"})
        sys.stdout.flush()
        text = raw.getvalue().decode(encoding)
        assert all(line.isprintable() for line in text.splitlines())
        assert json.loads(text) == {"name": EVIL, "far": "\U000e0001", "plain": "Zoë 漢字"}
        assert (encoding == "utf-8") == ("Zoë 漢字" in text)


def test_a_change_is_one_line_whatever_its_values_and_names() -> None:
    columns = (RecordColumn(EVIL, ColumnOperation.PUT, EVIL, 1), RecordColumn(EVIL, ColumnOperation.DELETE_ALL_VERSION))
    line = _line(EVIL, StreamRecord(RecordType.PUT, ((EVIL, EVIL),), columns, SequenceInfo(1, 1, 1)))

    assert line.isprintable()
    assert line.count(ESCAPED) == 6


LOGGED: dict[str, tuple[str, tuple[object, ...]]] = {
    "a name": ("shard %s", (EVIL,)),
    "two names": ("%s of %r", (EVIL, EVIL)),
    "a template": (EVIL, ()),
    "named values": ("shard %(name)s", ({"name": EVIL},)),
    "an error of others": ("no: %s", (ValueError(EVIL),)),
}


@pytest.mark.parametrize("entry", LOGGED)
def test_an_entry_of_the_log_is_one_line(entry: str, caplog: pytest.LogCaptureFixture) -> None:
    template, arguments = LOGGED[entry]
    logs.logger("streamclient.worker.lease.lease_manager").warning(template, *arguments)

    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert r"forged\x00" in record.getMessage()


def test_an_entry_that_is_plain_reaches_handlers_as_it_was_made(caplog: pytest.LogCaptureFixture) -> None:
    """Those that group entries do so by the template; a stack below an entry is indented, and stays."""
    logs.logger("streamclient.worker.health").warning("%s is slow, now at:\n%s", "it", '  File "x"\n    call()\n')

    (record,) = caplog.records
    assert (record.msg, record.args) == ("%s is slow, now at:\n%s", ("it", '  File "x"\n    call()\n'))


def test_an_entry_whose_arguments_do_not_fit_is_left_to_the_handlers() -> None:
    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    kept: list[logging.LogRecord] = []
    log, handler = logs.logger("streamclient.worker.health"), Keeps()
    log.addHandler(handler)
    log.propagate = False  # pytest's own handler raises what it cannot format
    try:
        log.error("%s %s", "one")  # noqa: PLE1206
    finally:
        log.propagate = True
        log.removeHandler(handler)

    assert [(record.msg, record.args) for record in kept] == [("%s %s", ("one",))]


@pytest.mark.parametrize("configured", ["", "logging.basicConfig(stream=sys.stdout, format='%(message)s'); "])
def test_without_handlers_python_still_prints_warnings(configured: str) -> None:
    program = (
        f"import logging, sys, streamclient.base.logs; {configured}"
        "log = streamclient.base.logs.logger('streamclient.worker.worker'); log.info('quiet'); log.warning('one\\ntwo')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert (ran.stdout, ran.stderr) == (("one\\ntwo\n", "") if configured else ("", "one\\ntwo\n"))
