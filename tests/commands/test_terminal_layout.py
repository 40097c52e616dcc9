"""Text and tables on a line of so many cells; ids by their beginnings."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.cli.terminal.layout import (
    Column,
    cut,
    cut_parts,
    display_width,
    fit_table,
    fold,
    matching_id,
    short_ids,
    shortener,
)
from streamclient.cli.terminal.output import ProgressLine, complain, shown_meanwhile
from streamclient.errors import ConfigurationError
from streamclient.operate.overview import rate
from tests.commands.terminal_process import COLUMNS as COLUMNS_OF_TERMINAL
from tests.commands.terminal_process import as_shown
from tests.patience import PATIENCE_SECONDS, until

COLUMNS = (Column("SHARD"), Column("OWNER", drop=1, least=8), Column("WHY", least=6), Column("EXTRA", drop=2))
CELLS = st.text(alphabet="abc 漢字-é", max_size=30)
ROWS = st.lists(st.tuples(st.text(alphabet="ab", max_size=8), CELLS, CELLS, CELLS), max_size=5)


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@given(ROWS, st.integers(30, 120))
def test_no_line_of_a_table_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    table = fit_table(COLUMNS, rows, width)

    assert all(display_width(line) <= width for line in table.lines)
    assert len(table.lines) == 1 + len(rows)


@given(ROWS)
def test_without_a_width_a_table_has_every_cell(rows: list[tuple[str, ...]]) -> None:
    table = fit_table(COLUMNS, rows, None)

    assert table.dropped == ()
    assert all(cell.strip() in line for row, line in zip(rows, table.lines[1:], strict=True) for cell in row)


def test_columns_go_by_importance_and_those_that_say_nothing_go_first() -> None:
    rows = [("a" * 8, "worker-1", "because of this", "more")]

    assert fit_table(COLUMNS, rows, 40).lines[0].split() == ["SHARD", "OWNER", "WHY", "EXTRA"]
    assert fit_table(COLUMNS, rows, 28).dropped == ("EXTRA",)
    assert fit_table(COLUMNS, rows, 18).dropped == ("OWNER", "EXTRA")
    silent = fit_table(COLUMNS, [("a" * 8, "-", "because of this", "more")], 32)
    assert (silent.lines[0].split(), silent.dropped) == (["SHARD", "WHY", "EXTRA"], ())


def test_a_cell_cannot_begin_a_line_or_move_the_cursor() -> None:
    table = fit_table((Column("A"),), [("x\n\x1b[2Jy",)], 80)

    assert table.lines[1] == r"x\n\x1b[2Jy"


@given(st.text(alphabet="ab 漢字", max_size=300), st.integers(40, 100))
def test_folded_text_fits_and_loses_no_word(text: str, width: int) -> None:
    folded = fold(text, width)

    assert all(display_width(line) <= width for line in folded.splitlines())
    assert "".join(folded.split()) == "".join(text.split())


def test_folding_goes_on_below_what_it_continues() -> None:
    assert fold("  note: " + "word " * 12, 40).splitlines()[1].startswith("    word")
    assert fold("a" * 100, None) == "a" * 100


def test_what_is_cut_says_so() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut("漢字漢字", 5) == "漢字…"
    assert cut_parts("full data  10 rows  3 rows/s", 20) == "full data  10 rows"
    assert cut_parts("full data", 4) == "ful…"


@given(st.sets(st.text(alphabet="01", min_size=9, max_size=20), max_size=20))
def test_short_ids_tell_all_ids_apart(ids: set[str]) -> None:
    shorts = short_ids(ids)

    assert all(len(short) >= min(8, len(full)) and full.startswith(short) for full, short in shorts.items())
    for full, short in shorts.items():
        assert matching_id(short, ids, "shard") == full
    prefixed = {one for one in ids for other in ids if one != other and other.startswith(one)}
    assert len(set(shorts.values())) == len(ids) or prefixed


def test_a_beginning_that_several_ids_share_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"shard 'ab' is ambiguous: abc, abd begin with it"):
        matching_id("ab", ["abc", "abd"], "shard")
    assert matching_id("abc", ["abc", "abcd"], "shard") == "abc"
    assert matching_id("zz", ["abc"], "shard") == "zz"
    assert matching_id("", ["abc"], "shard") == ""


def test_ids_are_shortened_wherever_they_stand_but_not_in_a_pipe() -> None:
    full = "12345678-aaaa"

    assert shortener([full], 80)(f"waits for {full}, then {full}") == "waits for 12345678, then 12345678"
    assert shortener([full], None)(full) == full


def test_an_id_in_code_to_type_stays_whole() -> None:
    """Python takes no beginnings of ids, which the commands take."""
    full = "12345678-aaaa"
    text = f"{full}: call worker.accept_loss('{full}'), or streamclient leases resume {full}"

    assert shortener([full], 80)(text) == (
        "12345678: call worker.accept_loss('12345678-aaaa'), or streamclient leases resume 12345678"
    )


def test_a_progress_that_nobody_reads_any_more_ends_also_while_nothing_is_new() -> None:
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as stream:
        line = ProgressLine(stream)
        line.show("merging changes")
        line.show("merging changes")
        line.require_reader()
        os.close(reader)

        for look in (line.require_reader, lambda: line.show("merging changes")):
            with pytest.raises(BrokenPipeError):
                look()
    ProgressLine(io.StringIO()).require_reader()


def test_an_unknown_rate_is_not_zero() -> None:
    assert (rate(None), rate(0.0), rate(12.4)) == ("-", "0", "12")


def test_progress_is_one_line_that_fits_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    line = ProgressLine(terminal)
    line.show("changes  [####........] 33%  1000 rows  300 rows/s")
    line.show("changes  done")
    line.say("a note")
    line.close()
    shown: list[Any] = terminal.getvalue().split("\n")

    assert shown == ["\r\x1b[Kchanges  [####........] 33%  1000 rows\r\x1b[Kchanges  done", "a note", ""]


def test_progress_in_a_pipe_says_only_what_is_new() -> None:
    pipe = io.StringIO()
    line = ProgressLine(pipe)
    for text in ("one", "one", "two"):
        line.show(text)
    line.close()

    assert [each[10:] for each in pipe.getvalue().splitlines()] == ["one", "two"]


BESIDE_PROGRESS = """
import logging
from streamclient.cli.terminal.output import ProgressLine, complain, log_to_terminal, print_text

log_to_terminal(logging.WARNING, "%(levelname)s %(message)s")
line = ProgressLine()
line.show("copying  3 rows")
logging.warning("the destination refused a row, " * 5 + "and that is all")
complain("complained")
print_text("printed")
line.show("copying  4 rows")
line.erase()
logging.warning("the end")
"""


def test_what_is_logged_stands_above_the_progress_line_and_is_folded() -> None:
    """The log is on standard error, the line on standard output: on a terminal they are one."""
    code, shown = on_a_terminal(sys.executable, "-c", BESIDE_PROGRESS)
    lines = shown.splitlines()

    assert code == 0
    assert max(map(len, lines)) <= COLUMNS_OF_TERMINAL
    assert lines[0].startswith("WARNING the destination refused a row, ")
    assert lines[-3:] == ["complained", "printed", "WARNING the end"]
    assert " ".join(lines).count("copying") == 0, "it was taken away each time"


def on_a_terminal(*words: str) -> tuple[int, str]:
    """Run a process whose standard output and error are a terminal; its code, and what is left on the lines."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS_OF_TERMINAL, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while select.select([master], [], [], PATIENCE_SECONDS)[0]:
            seen += os.read(master, 65_536)
    os.close(master)
    return process.wait(PATIENCE_SECONDS), as_shown(seen.decode())


def test_a_progress_line_stands_there_again_below_what_was_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    line = ProgressLine()
    line.show("copying")
    complain("a warning")
    shown = as_shown(terminal.getvalue())
    line.close()

    assert shown == "a warning\ncopying"


def test_what_takes_long_says_so_on_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("streamclient.cli.terminal.output.TELL_SECONDS", 0.0)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with shown_meanwhile("comparing"):
        until(lambda: re.search(r"comparing  \d+ s", terminal.getvalue()) is not None)

    assert as_shown(terminal.getvalue()) == "", "and takes the line away in the end"
