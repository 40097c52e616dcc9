"""What every command prints on a terminal of 80 columns is on the page, and nothing is wider than the terminal."""

from __future__ import annotations

import pytest

from streamclient.cli.main import COMMANDS, make_parser
from tests.commands.commands_page import PAGE, agrees, commands_of, is_for_programs, leaf_parsers, stage
from tests.commands.terminal_process import COLUMNS

GROUPS = sorted({" ".join(leaf.prog.split()[1:-1]) for leaf in leaf_parsers(make_parser())} - {""})

LEAVES = sorted(leaf.prog for leaf in leaf_parsers(make_parser()))


@pytest.mark.slow
def test_every_command_prints_what_the_page_shows_within_80_columns() -> None:
    """Nothing wraps, and what comes next begins a new line: every command ends its last one."""
    with stage() as here:
        for command, expected in commands_of(PAGE.read_text()):
            ran = here.run(command)
            wide = [] if is_for_programs(command) else [line for line in ran.shown.splitlines() if len(line) > COLUMNS]

            assert wide == [], f"$ {command}\n{ran.shown}"
            assert agrees(expected, ran.on_the_page), f"$ {command}\n{ran.on_the_page}\nnot:\n{expected}"
            assert ran.shown == "" or ran.shown.endswith("\n"), command


@pytest.mark.parametrize("command", ["streamclient", *(f"streamclient {group}" for group in GROUPS), *LEAVES])
def test_every_command_and_what_leads_to_it_is_on_the_page_with_its_help(command: str) -> None:
    shown = [line for line, _ in commands_of(PAGE.read_text())]

    assert f"{command} --help" in shown
    assert command not in LEAVES or any(line.startswith(command) for line in shown if "--help" not in line)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_found_under_its_name_alone(name: str) -> None:
    """The command line asks no other module when it is given this name."""
    assert {leaf.prog.split()[1] for leaf in leaf_parsers(make_parser([name]))} == {name}


def test_the_page_shows_the_ports_on_which_a_server_listens_by_default() -> None:
    """Numbers are not compared elsewhere."""
    given = make_parser(["server"]).parse_args(["server"])

    assert dict(commands_of(PAGE.read_text()))["streamclient server"] == (
        f"listening on http://127.0.0.1:{given.port}\nconsole at http://127.0.0.1:{given.console_port}/\n"
    )


def test_a_page_that_shows_something_else_is_noticed() -> None:
    """The check itself can fail."""
    assert agrees("SHARD  LAG\n1f0c77a2  12 s", "SHARD     LAG\nabcdef01  2 min 3 s")
    assert not agrees("SHARD  LAG\n1f0c77a2  12 s", "SHARD  LAG\nabcdef01  -")
    assert agrees("100%  40 rows  lag 0.0 s", "100%  40 rows  36 rows/s  lag 0.1 s")
    assert not agrees("no leases", "no tables")
    assert not agrees("no leases\n", "no leases\n[exit code 2]\n")
    assert not agrees("no leases\n[exit code 1]\n", "no leases\n[exit code 2]\n")
