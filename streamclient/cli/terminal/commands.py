"""The end of a command: its exit code, and its one line on standard error."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NoReturn

from streamclient.base.interrupts import RaisedBySignal
from streamclient.cli.terminal.output import complain, is_read, repeated, width_of
from streamclient.errors import NoThreadError, StreamClientError, is_refused_thread, printable

EXIT_DONE = 0
EXIT_REFUSED = 1
"""The command was not allowed, was not carried out entirely, or found something wrong."""
EXIT_UNUSABLE = 2
"""Wrong arguments, or a service or table that cannot be reached or read."""
EXIT_INTERRUPTED = 130
"""The exit code that shells give for SIGINT."""
EXIT_TERMINATED = 128 + signal.SIGTERM
"""The exit code that shells give for SIGTERM."""
EXIT_HUNG_UP = 129
"""The exit code that shells give for SIGHUP, whose number is 1."""

HANGUP = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()
"""SIGHUP where the system has it; Windows has none."""

READER_SECONDS = 0.2
"""The seconds between two checks whether the output of a command is still read. A person notices no delay, and a check
costs one call of the system."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a full disk."""

Run = Callable[[argparse.Namespace], int]


class CommandFailed(Exception):
    """The end of a command, with a text for the user. The default exit code is the one for wrong arguments."""

    def __init__(self, message: str, exit_code: int = EXIT_UNUSABLE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Terminated(KeyboardInterrupt):
    """SIGTERM came: it ends a command like Ctrl-C, with its own exit code."""

    exit_code = EXIT_TERMINATED
    text = "terminated"


class HungUp(Terminated):
    """SIGHUP came, as the terminal was closed or its connection broke: it ends a command like SIGTERM."""

    exit_code = EXIT_HUNG_UP
    text = "hung up"


class Parser(argparse.ArgumentParser):
    """A parser whose errors look like those of the commands: one line that says where to read more."""

    def error(self, message: str) -> NoReturn:
        """Print the error in the arguments, and exit."""
        _say_last(f"{self.prog}: {message}; see {self.prog} --help")
        sys.exit(EXIT_UNUSABLE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments.

        Refuse unknown ones here, where the command is known, so that the error names its ``--help``.
        """
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def exit(self, status: int = EXIT_DONE, message: str | None = None) -> NoReturn:
        """Exit after the help or the version was printed."""
        try:
            _flush()
        except OSError:
            _write_nowhere(sys.stdout)
            status = EXIT_REFUSED
        super().exit(status, message)


def runs(parser: argparse.ArgumentParser, run: Run) -> None:
    """Let ``run`` carry out the parser's command and return the exit code.

    A command whose output is no longer read ends with 0. A command that does more than print sets another exit code as
    the parser's default for ``unread``. A command whose errors are not plain text sets its function for them as
    ``complain`` of the arguments.
    """
    parser.set_defaults(run=run, command=parser.prog)


def open_standard_streams() -> None:
    """Make sure that every text can be written to the standard streams, however the command was started.

    A closed stream becomes the null device: otherwise the next file that is opened gets its number, and with that the
    output of libraries. Characters that the encoding lacks are printed as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # for as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error has it


def run_command(arguments: argparse.Namespace) -> int:
    """Carry out the parsed command; return the exit code.

    A SIGTERM or SIGHUP ends the command like Ctrl-C, so the command cleans up, too. A command that handles signals
    itself sets its own handlers.
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
        # The reader of the output has gone; nothing can be written there any more, not even at exit.
        _write_nowhere(sys.stdout)
        unread: int = getattr(arguments, "unread", EXIT_DONE)
        return unread if unread == EXIT_DONE else _end(arguments, "ended: its output is no longer read", unread)
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


@contextmanager
def shown_until_ended() -> Iterator[None]:
    """Run a block that prints for ever, until Ctrl-C, SIGTERM or SIGHUP, or until its output is no longer read.

    A write shows that a reader has gone, and a quiet table makes none. So a thread looks at the output meanwhile; it
    ends the block by SIGTERM, which also interrupts a call that waits for its answer.
    """
    main = threading.get_ident()

    def look() -> bool:
        if is_read(sys.stdout):
            return True
        signal.pthread_kill(main, signal.SIGTERM)
        return False

    with suppress(KeyboardInterrupt):
        # Another thread than the main one is interrupted by no signal. Without a thread, the next write shows the end.
        is_watched = threading.current_thread() is threading.main_thread() and is_read(sys.stdout) is not None
        with repeated(look, READER_SECONDS, "reader") if is_watched else nullcontext():
            yield


def _sentence(error: StreamClientError | RuntimeError) -> str:
    """Return the sentence for an error. Raise an error of Python's own again, unless the system refused a thread."""
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
        _say_last("")  # ends the line in which the terminal shows ^C
    _say_last(f"{arguments.command}: {text}", getattr(arguments, "complain", complain))
    return code


def _say_last(text: str, say: Callable[..., None] = complain) -> None:
    """Print to standard error, if that is still possible. The exit code is the same either way."""
    try:
        say(*text.split("\n"))  # an error may have several lines; quoted texts in them have none of their own
    except OSError:
        _write_nowhere(sys.stderr)


def _flush() -> None:
    """Write the buffered output now. At its exit, Python would complain that the reader is gone, and end with 120."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _write_nowhere(sys.stdout)


def _write_nowhere(stream: Any) -> None:
    """Send the stream's buffered text, and all later text, to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A second SIGTERM does not interrupt the cleaning up; a second Ctrl-C does, because it means hurry.
    handlers = [RaisedBySignal(signal.SIGTERM, Terminated, once=True)]
    # Under nohup the signal is ignored.
    hangups = [number for number in HANGUP if signal.getsignal(number) is signal.SIG_DFL]
    handlers += [RaisedBySignal(number, HungUp, once=True) for number in hangups]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handlers.append(RaisedBySignal(signal.SIGINT, KeyboardInterrupt, once=False))
    for handler in handlers:
        handler.install()
    try:
        yield
    finally:
        for handler in reversed(handlers):
            handler.remove()
