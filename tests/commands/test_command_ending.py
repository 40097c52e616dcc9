"""How a command ends where nobody reads it, where nothing can be written, and where its terminal is closed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from streamclient.base.interrupts import ENDING_SIGNALS
from streamclient.cli.main import main
from streamclient.cli.terminal.copy_progress import run_until_signal
from streamclient.copying import Mirror, Replication
from streamclient.errors import DependencyException, ErrorKind
from streamclient.server import LocalTablestore
from streamclient.tunnel import TunnelClient, TunnelType
from tests.interrupts import handled_by_python
from tests.mirror import mirroring
from tests.operate.operate_scene import STATUS, TABLE, Scene
from tests.patience import PATIENCE_SECONDS, until
from tests.replicate.drill import configuration, make_source

FULL = Path("/dev/full")


def run(
    *words: str,
    stdout: int | IO[Any] = subprocess.PIPE,
    stderr: int | IO[Any] = subprocess.PIPE,
    encoding: str = "utf-8",
    is_buffered: bool = True,
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which writes in blocks as it does for everybody who does not forbid it."""
    variables = {"PYTHONIOENCODING": encoding, "PYTHONUNBUFFERED": "" if is_buffered else "1"}
    return subprocess.run(
        [sys.executable, "-m", "streamclient.cli.main", *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **variables},
        timeout=PATIENCE_SECONDS,
        encoding=encoding,
        check=False,
    )


def run_without(stream: int, *words: str) -> subprocess.CompletedProcess[str]:
    """The command with a standard stream closed, as by ``2>&-``."""
    command = [sys.executable, "-m", "streamclient.cli.main", *words]
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {stream}>&-', "sh", *command], capture_output=True, encoding="utf-8", check=False
    )


@contextmanager
def nobody() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@pytest.mark.parametrize("words", [["sample"], ["sample", "--json"], ["--help"], ["--version"], ["tail", "--help"]])
@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_reader_who_has_seen_enough_is_no_error(words: list[str], is_buffered: bool) -> None:
    with nobody() as writer:
        ended = run(*words, stdout=writer, is_buffered=is_buffered)

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
def test_a_copy_that_nobody_reads_any_more_is_not_done(tmp_path: Path) -> None:
    with LocalTablestore() as source, LocalTablestore() as destination, nobody() as writer:
        make_source(source.client(), 3)
        path = tmp_path / "copy.json"
        path.write_text(json.dumps(configuration(source, destination)))
        ended = run("replicate", str(path), stdout=writer)

    assert ended.returncode == 1
    assert ended.stderr == "streamclient replicate: ended: its output is no longer read\n"


@contextmanager
def process(*words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The command, at the head of a group of processes as a shell starts it; killed with them at the end."""
    command = [sys.executable, "-m", "streamclient.cli.main", *words]
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
        start_new_session=True,
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["tail", TABLE, "--from", "oldest"], ["top", "--interval", "3600"]])
@pytest.mark.parametrize("as_json", [False, True])
def test_what_prints_for_ever_ends_with_its_reader_also_while_nothing_comes(
    local: LocalTablestore, words: list[str], as_json: bool
) -> None:
    """As with ``| head -1``: the next write would show it, and nothing is written."""
    Scene(local).write(1)
    place = {"ENDPOINT": local.endpoint, "DATA_TABLE": TABLE, "STATUS_TABLE": STATUS}
    variables = {f"TABLESTORE_{name}": value for name, value in place.items()}
    with process(*words, *(["--json"] if as_json else []), **variables) as ran:
        assert ran.stdout is not None
        assert ran.stdout.readline()
        ran.stdout.close()

        assert ran.wait(PATIENCE_SECONDS) == 0
        assert ran.stderr is not None
        assert ran.stderr.read() == ""


def processes_of(group: int) -> set[int]:
    """Those of a group that have not ended."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, its_group = (place / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.add(int(place.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not list processes so")
@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("whom", ["the command", "its group"])
def test_a_campaign_ends_with_its_processes_and_one_line(
    number: signal.Signals, code: int, said: str, whom: str
) -> None:
    """Ctrl-C goes to a whole group, ``kill`` to one process."""
    with process("simulate", "--seeds", "100000", "--processes", "2") as ran:
        # Two processes, and the one in which Python tracks what they share.
        until(lambda: len(processes_of(ran.pid)) == 4, "the processes of the campaign")
        (os.kill if whom == "the command" else os.killpg)(ran.pid, number)
        _, complaint = ran.communicate(timeout=PATIENCE_SECONDS)

        assert (ran.returncode, complaint) == (code, f"streamclient simulate: {said}\n")
        until(lambda: not processes_of(ran.pid), "the end of its processes")


@pytest.mark.skipif(not FULL.exists(), reason="there is no file that is always full")
@pytest.mark.parametrize("words", [["sample"], ["sample", "--json"]])
@pytest.mark.parametrize("is_buffered", [True, False])
def test_output_for_which_there_is_no_room_is_one_sentence(words: list[str], is_buffered: bool) -> None:
    with FULL.open("w") as full:
        ended = run(*words, stdout=full, is_buffered=is_buffered)

    assert ended.returncode == 1
    assert ended.stderr == "streamclient sample: ended: its output cannot be written: No space left on device\n"


@pytest.mark.skipif(not FULL.exists(), reason="there is no file that is always full")
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["leases", "list", "--help"]])
@pytest.mark.parametrize("is_buffered", [True, False])
def test_help_for_which_there_is_no_room_is_not_printed(words: list[str], is_buffered: bool) -> None:
    with FULL.open("w") as full:
        assert run(*words, stdout=full, is_buffered=is_buffered).returncode == 1


@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_refusal_stands_although_nobody_reads_what_was_printed_before_it(
    local: LocalTablestore, is_buffered: bool
) -> None:
    scene = Scene(local)
    scene.put_lease(scene.shard)
    TunnelClient(local.client()).create_tunnel(TABLE, "billing", TunnelType.STREAM)
    place = ["--endpoint", local.endpoint]
    with nobody() as writer:
        kept = run("tunnels", "delete", TABLE, "billing", *place, stdout=writer, is_buffered=is_buffered)
        place += ["--data-table", TABLE, "--status-table", STATUS]
        refused = run("leases", "resume", scene.shard, *place, stdout=writer, is_buffered=is_buffered)

    assert (kept.returncode, kept.stderr.count("\n")) == (2, 1), kept
    assert "add --yes to accept that" in kept.stderr
    assert (refused.returncode, refused.stderr) == (1, "")


@pytest.mark.skipif(not FULL.exists(), reason="there is no file that is always full")
@pytest.mark.parametrize("words", [["sample", "nothing"], ["sample", "--nothing"]])
def test_the_exit_code_stands_although_the_complaint_cannot_be_written(words: list[str]) -> None:
    with FULL.open("w") as full:
        assert run(*words, stderr=full).returncode == 2


def test_a_closed_stream_is_no_error_and_gets_nothing_into_the_other_one(tmp_path: Path) -> None:
    refused = run_without(2, "sample", "nothing")
    written = run_without(1, "sample", "print_changes", "--directory", str(tmp_path))

    assert (refused.returncode, refused.stdout) == (2, "")
    assert (written.returncode, written.stderr) == (0, "")
    assert (tmp_path / "print_changes.py").exists()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk"])
def test_what_an_encoding_lacks_is_escaped_and_json_stays_json(encoding: str, tmp_path: Path) -> None:
    place = tmp_path / "é 订单 \N{SNOWMAN} \N{GRINNING FACE}"
    words = ["sample", "print_changes", "--directory", str(place)]
    text = run(*words, stderr=subprocess.STDOUT, encoding=encoding)
    document = run(*words, "--force", "--json", encoding=encoding)

    assert text.returncode == 0, text.stdout
    assert "\\U0001f600/print_changes.py" in text.stdout
    assert json.loads(document.stdout)["files"] == [str(place / "print_changes.py")]


@pytest.fixture
def handlers() -> Iterator[None]:
    """Those of the signals are as before afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_copy_ends_in_order_by_a_signal_unless_that_is_ignored(number: signal.Signals, code: int) -> None:
    def ended_by(handler: Any) -> int | None:
        signal.signal(number, handler)
        over, looks = threading.Event(), 0

        def look() -> None:
            nonlocal looks
            looks += 1
            if looks == 1:
                os.kill(os.getpid(), number)
            else:
                over.set()

        running, ended = run_until_signal("copy", lambda: over.wait(PATIENCE_SECONDS), over.set, look)
        assert running.result()
        return ended

    assert ended_by(signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL) == code
    assert ended_by(signal.SIG_IGN) is None


CALLS_GIVEN_UP = {
    "mirror": (Mirror, lambda mirror: mirror._stop, "stopped; copied by this process: 0 rows ({}). Run again to go on"),
    "replicate": (
        Replication,
        lambda replication: replication.stop,
        "replication stopped; run again to go on: 0 rows written, 0 refused ({})",
    ),
}
"""The class that copies, its event for the end, and what the command then prints."""


@pytest.mark.parametrize("number", ENDING_SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("kind", [ErrorKind.AMBIGUOUS, ErrorKind.PERMANENT], ids=lambda kind: kind.name)
@pytest.mark.parametrize("command", CALLS_GIVEN_UP)
def test_a_copy_that_a_signal_ends_in_an_outage_is_interrupted(  # noqa: PLR0917 -- one column of the table each
    local: LocalTablestore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    kind: ErrorKind,
    command: str,
) -> None:
    """A repeated call raises its last failure once it is told to end. Another failure stays a failure."""
    copy, stop_of, told = CALLS_GIVEN_UP[command]
    main_thread = threading.get_ident()

    def fail_when_stopped(self: Any) -> None:
        signal.pthread_kill(main_thread, number)
        assert stop_of(self).wait(PATIENCE_SECONDS)
        raise DependencyException("no connection", kind=kind)

    monkeypatch.setattr(copy, "_run", fail_when_stopped)
    path = tmp_path / "copy.toml"
    if command == "mirror":
        place = f'endpoint = "{local.endpoint}"\ntable = "orders"\nstatus_table = "s"'
        path.write_text(f'[source]\n{place}\n[destination]\nkind = "delta"\nurl = "{tmp_path / "lake"}"\n')
    else:
        path = tmp_path / "copy.json"
        path.write_text(json.dumps(configuration(local, local)))
    with handled_by_python():
        code = main([command, str(path)])
    out, err = capsys.readouterr()

    if kind is ErrorKind.PERMANENT:
        assert (code, err) == (1, f"streamclient {command}: ended: no connection\n")
    else:
        assert (code, err) == (128 + number, "")
        assert out.endswith(told.format("the service did not answer: no connection") + "\n")


def test_a_replication_of_a_table_without_a_stream_has_failed(
    local: LocalTablestore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1 and not 2, because the service has been called. A wrong poison file is found before."""
    mirroring.make_table(local.client(), "plain", stream=False)
    content: Any = configuration(local, local, source="stream", statusTableName="s", tableName="plain")
    del content["ots-reader"]["tunnelName"]
    path = tmp_path / "copy.json"
    path.write_text(json.dumps(content))
    assert main(["replicate", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert "table 'plain' has no stream" in json.loads(out)["error"]
    assert "streamclient replicate: ended: table 'plain' has no stream" in err

    content["ots-writer"].update(onPoisonRow="skip", poisonFile=str(tmp_path / "no" / "file"))
    path.write_text(json.dumps(content))
    local.reset_requests()
    assert main(["replicate", str(path), "--json"]) == 2
    assert capsys.readouterr().out == ""
    assert local.requests() == ()
