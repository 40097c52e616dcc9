"""A damaged database is named and not served; a held one cannot be opened by any name; time goes forward only."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_http_tools import create_table
from server_state_driver import (
    GENERATED_KEY,
    HOUR_SECONDS,
    START_MICROS,
    Driver,
    over_http,
    put,
    refusal_of,
    single,
    stream_driver,
    table_driver,
)

from streamclient.server import Clock, DataDirectoryError, LocalTablestore
from streamclient.server.server_clock import LATEST_MICROS
from streamclient.server.storage import open_storage
from streamclient.server.storage_sqlite import DATABASE_FILE, checksum
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound, decode_row
from streamclient.wire.schema import ComparatorType, ReturnType
from tests.patience import PATIENCE_SECONDS


def filled(directory: Path) -> None:
    """A table with rows, a stream with records, a tunnel with its parts."""
    driver = stream_driver(open_storage(directory), name="orders")
    tunnel = schema.Tunnel(table_name="orders", tunnel_name="n", tunnel_type=3)
    driver.engine.execute("tunnel/create", schema.CreateTunnelRequest(tunnel=tunnel).SerializeToString())
    driver.engine.execute("tunnel/list", b"")
    driver.put_each("abcdefgh", put("x", "v" * 100), table="orders")
    driver.engine.close()


def server_output(directory: Path) -> subprocess.CompletedProcess[str]:
    """What a server process says that cannot serve a directory."""
    command = [sys.executable, "-m", "streamclient", "server", "--port", "0", "--data", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def damage(directory: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(directory / DATABASE_FILE) as database:
        changed = database.execute(statement, values).rowcount
    database.close()
    assert changed


def refusal(directory: Path) -> str:
    with pytest.raises(DataDirectoryError) as caught:
        LocalTablestore(data_dir=directory).start()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE rows SET body = zeroblob(10) WHERE instr(key, 'c') > 0", ["table 'orders'", "('c',)"]),
        ("UPDATE rows SET written_millis = 5 WHERE instr(key, 'c') > 0", ["table 'orders'", "('c',)"]),
        ("UPDATE records SET element = zeroblob(5) WHERE position = 3", ["'records'", "position 3", "'orders'"]),
        ("UPDATE records SET position = 77 WHERE position = 3", ["'records'", "position 77", "'orders'"]),
        ("DELETE FROM records WHERE position = 3", ["position 4", "expected position 3"]),
        ("DELETE FROM records WHERE position = 7", ["'records'", "7 stream records", "expected 8"]),
        ("DELETE FROM records", ["'records'", "0 stream records", "expected 8"]),
        ("UPDATE shards SET document = '{}'", ["'shards'"]),
        ("UPDATE streams SET document = '{}'", ["'streams'"]),
        ("UPDATE tables SET document = '{}'", ["'tables'"]),
        ("UPDATE tunnel_parts SET document = '{}' WHERE kind = 'channel'", ["'tunnel_parts'", "'channel'"]),
        ("UPDATE settings SET value = 'x'", ["'settings'"]),
    ],
)
def test_a_damaged_row_is_named_with_its_table(tmp_path: Path, statement: str, named: list[str]) -> None:
    filled(tmp_path)
    damage(tmp_path, statement)

    text = refusal(tmp_path)

    assert "damaged" in text
    assert [part for part in named if part not in text] == [], text


def test_a_row_that_came_to_another_place_is_damaged(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, "UPDATE rows SET key = key || x'00' WHERE instr(key, 'c') > 0")

    assert "checksum" in refusal(tmp_path)


def test_a_record_of_no_shard_and_a_row_of_no_table_are_found(tmp_path: Path) -> None:
    filled(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "rows")
    values: tuple[Any, ...] = (99, 0, 1, 1, b"")
    damage(tmp_path, "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", *values, checksum("records", values))
    assert "shard number 99" in refusal(tmp_path)
    values = (99, b"k", 1, b"")
    damage(tmp_path / "rows", "INSERT INTO rows VALUES (?, ?, ?, ?, ?)", *values, checksum("rows", values))
    assert "belongs to table number 99, which is missing" in refusal(tmp_path / "rows")


@pytest.mark.slow
def test_pages_overwritten_at_random_are_named_on_one_line_with_exit_code_2(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / DATABASE_FILE
    whole = path.read_bytes()
    pages = len(whole) // 4096
    assert pages > 5
    outcomes = []
    for page in range(1, pages):
        path.write_bytes(whole[: page * 4096] + b"\xa5" * 4096 + whole[(page + 1) * 4096 :])
        outcomes.append(outcome(tmp_path))
    assert "damaged" in " ".join(outcomes)
    assert "\n" not in "".join(outcomes)
    path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))
    done = server_output(tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "damaged" in done.stderr


def outcome(directory: Path) -> str:
    try:
        open_and_close(directory)
    except DataDirectoryError as error:
        return str(error)
    return "a page that is not used"


def open_and_close(directory: Path) -> None:
    with LocalTablestore(data_dir=directory):
        pass


# --- one server at a time


def symbolic_link(held: Path, other: Path) -> None:
    other.mkdir()
    (other / DATABASE_FILE).symlink_to(held / DATABASE_FILE)


def hard_link(held: Path, other: Path) -> None:
    other.mkdir()
    os.link(held / DATABASE_FILE, other / DATABASE_FILE)


def linked_directory(held: Path, other: Path) -> None:
    other.symlink_to(held)


@pytest.mark.parametrize("link", [symbolic_link, hard_link, linked_directory])
@pytest.mark.parametrize("is_written", [False, True])
def test_a_held_file_cannot_be_opened_by_another_name(
    tmp_path: Path, link: Callable[[Path, Path], None], is_written: bool
) -> None:
    held = tmp_path / "held"
    with LocalTablestore(data_dir=held) as local:
        if is_written:
            create_table(local)
        link(held, tmp_path / "other")
        with pytest.raises(DataDirectoryError, match="in use by another server"):
            LocalTablestore(data_dir=tmp_path / "other").start()
        done = server_output(tmp_path / "other")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "in use by another server" in done.stderr
        assert over_http(local).tables() == ["t"] * is_written
    open_and_close(tmp_path / "held")


def copy_the_directory(held: Path) -> None:
    shutil.copytree(held, held.parent / "copy")


def read_each_file(held: Path) -> None:
    for file in held.iterdir():
        file.read_bytes()


def look_at_it_with_sqlite(held: Path) -> None:
    with sqlite3.connect(held / DATABASE_FILE, timeout=0) as database, contextlib.suppress(sqlite3.OperationalError):
        database.execute("SELECT count(*) FROM sqlite_master").fetchall()
    database.close()


def try_a_second_server(held: Path) -> None:
    with pytest.raises(DataDirectoryError):
        LocalTablestore(data_dir=held).start()


def fork_a_child(held: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    "happening", [copy_the_directory, read_each_file, look_at_it_with_sqlite, try_a_second_server, fork_a_child]
)
def test_a_directory_stays_held_whatever_opens_and_closes_its_files(
    tmp_path: Path, happening: Callable[[Path], None]
) -> None:
    """SQLite's own lock ends with the first close of the file in this process; then two servers acknowledged writes."""
    held = tmp_path / "held"
    with LocalTablestore(data_dir=held) as local:
        create_table(local)

        happening(held)

        said = server_output(held).stderr
        assert f"{held} is in use by another server (process {os.getpid()})" in said
        create_table(local, "later")
    assert tables_in(held) == ["later", "t"]


def tables_in(directory: Path) -> list[str]:
    driver = Driver(open_storage(directory))
    try:
        return driver.tables()
    finally:
        driver.engine.close()


def test_a_forked_child_does_not_end_what_its_parent_serves(tmp_path: Path) -> None:
    """SQLite would delete the journal into which the parent goes on writing."""
    local = LocalTablestore(data_dir=tmp_path).start()
    create_table(local)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            local.stop()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    create_table(local, "later")

    copied = tmp_path / "copy"  # as the death of this process would leave it
    copied.mkdir()
    for file in tmp_path.glob(f"{DATABASE_FILE}*"):
        shutil.copy(file, copied)
    assert tables_in(copied) == ["later", "t"]
    local.stop()


# --- what is left of a database that was lost


def emptied(directory: Path) -> None:
    os.truncate(directory / DATABASE_FILE, 0)


def without_its_tables(directory: Path) -> None:
    (directory / DATABASE_FILE).unlink()
    with sqlite3.connect(directory / DATABASE_FILE) as database:
        database.execute("PRAGMA user_version = 3")
    database.close()


def only_the_journal(directory: Path) -> None:
    (directory / DATABASE_FILE).unlink()
    (directory / f"{DATABASE_FILE}-wal").write_bytes(b"x" * 100)


@pytest.mark.parametrize("loss", [emptied, without_its_tables, only_the_journal])
def test_what_is_left_of_a_lost_database_is_not_a_new_one(tmp_path: Path, loss: Callable[[Path], None]) -> None:
    filled(tmp_path)
    loss(tmp_path)
    left = {file.name: file.read_bytes() for file in tmp_path.glob(f"{DATABASE_FILE}*")}

    text = refusal(tmp_path)

    assert DATABASE_FILE in text
    assert "restore" in text
    assert "to start without data" in text
    assert {file.name: file.read_bytes() for file in tmp_path.glob(f"{DATABASE_FILE}*")} == left


def test_a_database_whose_making_was_interrupted_is_made_again(tmp_path: Path) -> None:
    (tmp_path / f"{DATABASE_FILE}.new").write_bytes(b"half of one")

    filled(tmp_path)
    open_and_close(tmp_path)

    assert not (tmp_path / f"{DATABASE_FILE}.new").exists()


# --- time


def test_an_acknowledged_write_is_seen_although_the_machines_clock_went_back(tmp_path: Path) -> None:
    driver = stream_driver(open_storage(tmp_path))
    driver.wall.micros += 3600 * 1_000_000
    driver.put("a", put("x", "old"))
    driver.engine.close()

    again = Driver(open_storage(tmp_path))
    again.wall.micros = START_MICROS
    again.update("a", put("x", "new"))

    assert again.get("a") == {"x": "new"}
    assert again.clock.now_micros() >= driver.clock.now_micros() - 1_000
    again.engine.close()


def test_time_goes_on_while_the_machines_clock_is_behind() -> None:
    """The machine's own time, and not one of a test's, is followed at the pace of the steady clock."""
    clock = Clock()
    ahead = clock.now_micros() + HOUR_SECONDS * 1_000_000
    clock.resume(0, ahead)
    first = clock.now_micros()
    while clock.now_micros() == first:
        continue

    assert first >= ahead
    assert clock.now_micros() < ahead + HOUR_SECONDS * 1_000_000
    clock.advance(60)
    assert clock.now_micros() >= ahead + 60_000_000


DAY_MICROS = 24 * HOUR_SECONDS * 1_000_000


class MachineTime:
    """A machine's two clocks: one that people set, one that only goes on."""

    def __init__(self) -> None:
        self.wall, self.steady = START_MICROS, 5

    def passes(self, micros: int) -> None:
        self.wall += micros
        self.steady += micros

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.wall, lambda: self.steady)


def test_a_jump_of_the_machines_clock_ends_no_data_and_time_comes_back(tmp_path: Path) -> None:
    """Ten years ahead for a while: nothing is past, and with the machine's clock the server's comes back."""
    machine = MachineTime()
    clock = machine.clock
    driver = stream_driver(open_storage(tmp_path), clock=clock, options={"time_to_live": 86_400})
    driver.put("a", put("x", 1))

    machine.passes(60_000_000)
    machine.wall += 3_650 * DAY_MICROS
    driver.put("b", put("x", 2))
    during = clock.now_micros() - START_MICROS
    machine.passes(60_000_000)
    machine.wall -= 3_650 * DAY_MICROS
    driver.put("c", put("x", 3))

    assert during == 60_000_000
    assert clock.now_micros() == machine.wall == START_MICROS + 120_000_000
    assert sorted(driver.table()) == ["a", "b", "c"]
    assert len(driver.all_records()) == 3
    driver.engine.close()


@pytest.mark.parametrize("days", [1, 3_650])
def test_a_server_comes_back_from_a_time_that_was_wrong(tmp_path: Path, days: int) -> None:
    """Without deleting its data, and what is written then is the newest, although older writes are dated later."""
    driver = Driver(open_storage(tmp_path))
    driver.create_with_stream(options={"max_versions": 1})
    driver.create("made", key=GENERATED_KEY)
    driver.wall.micros += days * DAY_MICROS
    driver.put("a", put("x", "old"))
    made = driver.put((("pk", "a"), ("id", KeyBound.AUTO_INCREMENT)), table="made", returns=ReturnType.PK)
    (record,) = driver.all_records()

    again = driver
    for turn in range(3):  # what was ahead is still known at the next start
        again.engine.close()
        again = Driver(open_storage(tmp_path))
        assert 0 <= again.clock.now_micros() - START_MICROS < 1_000_000
        again.update("a", put("x", f"new {turn}"))
        assert again.get("a") == {"x": f"new {turn}"}

    records = [each.sequence_info for each in again.all_records()]
    assert records[0] == record.sequence_info
    assert records == sorted(set(records))
    later = again.put((("pk", "a"), ("id", KeyBound.AUTO_INCREMENT)), table="made", returns=ReturnType.PK)
    assert decode_row(later.row).primary_key > decode_row(made.row).primary_key
    again.engine.close()


def test_a_small_lead_is_caught_up_at_half_the_pace() -> None:
    machine = MachineTime()
    clock = machine.clock
    assert not clock.resume(0, START_MICROS + 60_000_000)

    found = [clock.now_micros() - START_MICROS]
    for _ in range(4):
        machine.passes(40_000_000)
        found.append(clock.now_micros() - START_MICROS)

    assert found == [60_000_000, 80_000_000, 100_000_000, 120_000_000, 160_000_000]


def test_a_day_that_passed_or_a_machine_that_slept_is_followed() -> None:
    machine = MachineTime()
    clock = machine.clock
    machine.passes(400 * DAY_MICROS)
    assert clock.now_micros() == machine.wall
    machine.wall += 9 * HOUR_SECONDS * 1_000_000  # of which the steady clock of a virtual machine knows nothing
    assert clock.now_micros() == machine.wall


def test_noise_between_the_clocks_does_not_hurry_a_server_that_ignores_a_jump() -> None:
    """It compares the two clocks at each reading then."""
    machine = MachineTime()
    clock = machine.clock
    machine.wall += 3 * DAY_MICROS
    ignored = machine.wall - clock.now_micros()
    for _ in range(20_000):
        machine.passes(500)
        for noise in (-3_000, 3_000):
            machine.wall += noise
            clock.now_micros()
    assert machine.wall - clock.now_micros() == ignored

    machine.wall -= 3 * DAY_MICROS - 3_000
    assert clock.now_micros() == machine.wall


def test_small_steps_of_a_clock_that_jumped_add_up() -> None:
    """Steps back are taken from the jump, so time goes on; steps ahead are followed, each by itself."""
    machine = MachineTime()
    clock = machine.clock
    machine.wall += 3 * DAY_MICROS
    found = [clock.now_micros() - START_MICROS]
    for _ in range(20):
        machine.wall -= 300_000
        found.append(clock.now_micros() - START_MICROS)
    for _ in range(3):
        machine.wall += 20 * HOUR_SECONDS * 1_000_000
        found.append(clock.now_micros() - START_MICROS)

    assert found == sorted(found)
    assert found[20] < 1_000_000
    assert [later - found[20] for later in found[21:]] == [20 * n * HOUR_SECONDS * 1_000_000 for n in (1, 2, 3)]


def test_the_clock_ends_with_the_year_2261() -> None:
    clock = Clock(lambda: START_MICROS)
    with pytest.raises(ValueError, match="2261"):
        clock.advance((LATEST_MICROS - START_MICROS) / 1_000_000 + 1)
    clock.advance(1)

    assert clock.now_micros() == START_MICROS + 1_000_000


def test_no_machine_time_leads_past_the_end_of_the_clock() -> None:
    wrong = Clock(lambda: 2 * LATEST_MICROS)
    resumed = Clock(lambda: START_MICROS)
    resumed.resume(LATEST_MICROS - START_MICROS, 2 * LATEST_MICROS)

    assert wrong.now_micros() == LATEST_MICROS
    assert resumed.now_micros() <= LATEST_MICROS


@pytest.mark.slow
def test_an_advanced_clock_survives_a_kill(tmp_path: Path) -> None:
    """Nothing but the clock was touched, so no other commit could have carried it."""
    program = (
        "import sys, threading\n"
        "from streamclient.server import LocalTablestore\n"
        "local = LocalTablestore(data_dir=sys.argv[1]).start()\n"
        "local.advance_clock(864000)\n"
        "print('advanced', flush=True)\n"
        "threading.Event().wait()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "advanced\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE_SECONDS)
    clock = Clock(lambda: START_MICROS)
    with LocalTablestore(data_dir=tmp_path, clock=clock):
        assert clock.offset_micros == 864_000 * 1_000_000


def test_a_regular_expression_cannot_stop_the_server() -> None:
    """Linear time by construction: one that goes back and forth would take 2**60 steps here.

    In another process: where an engine keeps the interpreter's lock meanwhile, this one could not stop to wait.
    """
    program = (
        "from streamclient.server.patterns import compile_pattern\n"
        "text = 'a' * 60 + '!'\n"
        "print(compile_pattern('(a+)+$').first(text), len(compile_pattern('(a+)!').first(text)))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)

    assert (done.stdout, done.stderr) == ("None 60\n", "")


def matching(pattern: str) -> bytes:
    """A filter that lets rows pass in which the expression finds something."""
    return single(ComparatorType.EXIST, "x", rule=schema.ValueTransferRule(regex=pattern, cast_type=3))


@pytest.mark.parametrize(("pattern", "found"), [("(a+)+$", []), ("(a+)!", ["a"])])
def test_a_filter_finds_what_its_regular_expression_matches(pattern: str, found: list[str]) -> None:
    driver = table_driver()
    driver.put("a", put("x", "a" * 60 + "!"))

    assert list(driver.table(filter=matching(pattern))) == found


REFUSED = ["(", "(?=a)", "(a)\\1", "x" * 257, "é" * 129, "", "()" * 33, "((a{99}){99}){99}", "\\pL{1000}"]
REFUSED_PERL = [
    *("(?<!a)b", "(?<n>a)\\k<n>", "(?|(a)|(b))", "(a)(?(1)b|c)", "(a(?1)?b)", "a++", "a*+", "a?+", "(?>a)"),
    *("(?#c)a", "(?x) a", "(?^:a)", "(?'n'a)", "a{1001}", "a{0,1001}", "\\p{Letter}", "\\o{141}"),
    *("\\Z", "\\G", "\\K", "\\h", "\\H", "\\V", "\\R", "\\X", "\\N", "\\e", "\\cA"),
]
"""Expressions of Perl that RE2 does not know."""


@pytest.mark.parametrize("pattern", [*REFUSED, *REFUSED_PERL])
def test_a_regular_expression_that_cannot_be_used_is_refused(pattern: str) -> None:
    status, code, text = refusal_of(table_driver().table, filter=matching(pattern))

    assert (status, code, "regex in value transfer rule" in text) == (400, "OTSParameterInvalid", True)
