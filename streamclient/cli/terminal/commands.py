"""How a command ends: its exit code, and its one line on standard error."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from streamclient.base.interrupts import RaisedBySignal
from streamclient.cli.terminal.output import complain, width_of
from streamclient.errors import NoThreadError, StreamClientError, is_refused_thread, printable

EXIT_DONE = 0
EXIT_REFUSED = 1
"""The command was not allowed, not carried out entirely, or found something that is not as it should be."""
EXIT_UNUSABLE = 2
"""Wrong arguments, or a service or table that cannot be reached or read."""
EXIT_INTERRUPTED = 130
"""As shells have it for SIGINT."""
EXIT_TERMINATED = 128 + signal.SIGTERM
"""As shells have it for SIGTERM."""
EXIT_HUNG_UP = 128 + signal.SIGHUP
"""As shells have it for SIGHUP."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a full disk answers."""

Run = Callable[[argparse.Namespace], int]


class CommandFailed(Exception):
    """A command ends here. The text is for the user; the exit code is that of wrong arguments by default."""

    def __init__(self, message: str, exit_code: int = EXIT_UNUSABLE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what Ctrl-C does, with another exit code."""

    exit_code = EXIT_TERMINATED
    text = "terminated"


class HungUp(Terminated):
    """SIGHUP came, as the terminal was closed or its connection broke: the same, with its own exit code."""

    exit_code = EXIT_HUNG_UP
    text = "hung up"


class Parser(argparse.ArgumentParser):
    """A parser whose complaints look like those of the commands: one line, and where to read more."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and exit."""
        _say_last(f"{self.prog}: {message}; see {self.prog} --help")
        sys.exit(EXIT_UNUSABLE)

    def exit(self, status: int = EXIT_DONE, message: str | None = None) -> NoReturn:
        """Exit behind what was asked for: the help, or the version."""
        try:
            _flush()
        except OSError:
            _write_nowhere(sys.stdout)
            status = EXIT_REFUSED
        super().exit(status, message)


def runs(parser: argparse.ArgumentParser, run: Run) -> None:
    """Have a parser's command carried out by ``run``, which returns the exit code.

    Where nobody reads what it prints any more it ends with 0, or with the parser's default for ``unread``: that of a
    command which does more than print.
    """
    parser.set_defaults(run=run, command=parser.prog)


def open_standard_streams() -> None:
    """Have standard streams to which everything can be written, whatever the command was started with.

    A stream that was closed becomes the null device: else the next file that is opened gets its number, and whatever
    a library prints goes there. Characters that the encoding lacks are printed as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # for as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error has it


def run_command(arguments: argparse.Namespace) -> int:
    """Carry out what was parsed; the exit code.

    A SIGTERM or SIGHUP ends it like Ctrl-C: whatever a command cleans up, it cleans up then, too. A command that
    handles signals itself sets its own handlers.
    """
    try:
        with _interrupted_by_signals():
            code: int = arguments.run(arguments)
        _flush()
        return code
    except CommandFailed as error:
        return _end(arguments, str(error), error.exit_code)
    except (StreamClientError, RuntimeError) as error:
        return _end(arguments, _sentence(error), EXIT_UNUSABLE)
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing more can be said there, not even at exit.
        _write_nowhere(sys.stdout)
        unread: int = getattr(arguments, "unread", EXIT_DONE)
        return unread if unread == EXIT_DONE else _end(arguments, "ended: nobody reads its output any more", unread)
    except OSError as error:
        if error.filename is not None:
            return _end(arguments, printable(f"cannot use {error.filename}: {error.strerror}"), EXIT_UNUSABLE)
        if error.errno not in NO_ROOM:
            raise
        return _end(arguments, f"ended: its output cannot be written: {error.strerror}", EXIT_REFUSED)
    except Terminated as ended:
        return _end(arguments, ended.text, ended.exit_code)
    except KeyboardInterrupt:
        return _end(arguments, "interrupted", EXIT_INTERRUPTED)


def _sentence(error: StreamClientError | RuntimeError) -> str:
    """What to say of an error; one of Python's own is raised again, unless the system refused a thread."""
    if isinstance(error, StreamClientError):
        return str(error)
    if is_refused_thread(error):
        return str(NoThreadError.of("this command", error))
    raise error


def _end(arguments: argparse.Namespace, text: str, code: int) -> int:
    try:
        _flush()
    except OSError:
        _write_nowhere(sys.stdout)
    if width_of(sys.stderr) is not None and text == "interrupted":
        _say_last("")  # behind the terminal's own ^C
    _say_last(f"{arguments.command}: {text}")
    return code


def _say_last(text: str) -> None:
    """On standard error, if that still takes it: the exit code stands either way."""
    try:
        complain(*text.split("\n"))  # an error's own lines, whose parts of others are one line each
    except OSError:
        _write_nowhere(sys.stderr)


def _flush() -> None:
    """Write what was printed now: at its exit, Python would complain of a reader who has gone, and end with 120."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _write_nowhere(sys.stdout)


def _write_nowhere(stream: Any) -> None:
    """Have what the stream still holds, and whatever else is written there, go to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Cleaning up is not interrupted by a second SIGTERM; it is by a second Ctrl-C, which means hurry.
    handlers = [RaisedBySignal(signal.SIGTERM, Terminated, once=True)]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup has it ignored
        handlers.append(RaisedBySignal(signal.SIGHUP, HungUp, once=True))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handlers.append(RaisedBySignal(signal.SIGINT, KeyboardInterrupt, once=False))
    for handler in handlers:
        handler.install()
    try:
        yield
    finally:
        for handler in reversed(handlers):
            handler.remove()
