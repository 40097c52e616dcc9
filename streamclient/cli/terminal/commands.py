"""The run and the end of commands: arguments, signals, exit codes, and one line on standard error for a failure."""

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
"""The exit code if the command was refused, was not carried out entirely, or found something wrong."""
EXIT_UNUSABLE = 2
"""The exit code for wrong arguments, or for a service or table that cannot be reached or read."""
EXIT_INTERRUPTED = 130
"""The exit code that shells give for SIGINT."""
EXIT_TERMINATED = 128 + signal.SIGTERM
"""The exit code that shells give for SIGTERM."""
EXIT_HUNG_UP = 129
"""The exit code that shells give for SIGHUP, whose number is 1."""

HANGUP = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()
"""The signal SIGHUP in a tuple; empty on Windows, which does not have the signal."""

READER_SECONDS = 0.2
"""The time, in seconds, between two checks whether the output of a command is still read. A person notices no delay,
and a check costs only one system call."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The error numbers of writes that fail for lack of space."""

Run = Callable[[argparse.Namespace], int]


class CommandFailed(Exception):
    """An error that ends a command with a message for the user. The default exit code is ``EXIT_UNUSABLE``."""

    def __init__(self, message: str, exit_code: int = EXIT_UNUSABLE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Terminated(KeyboardInterrupt):
    """The exception that SIGTERM raises. It ends a command like Ctrl-C, but with its own exit code."""

    exit_code = EXIT_TERMINATED
    text = "terminated"


class HungUp(Terminated):
    """The exception that SIGHUP raises when the terminal is closed. It ends a command like SIGTERM."""

    exit_code = EXIT_HUNG_UP
    text = "hung up"


class Parser(argparse.ArgumentParser):
    """A parser whose errors look like errors of commands: one line, which says where to read more."""

    _is_unwritten = False
    """Whether the help or the version could not be written. Unbuffered output fails at once, not at the flush."""

    def error(self, message: str) -> NoReturn:
        """Print ``message`` about the arguments, and exit with ``EXIT_UNUSABLE``."""
        _say_last(f"{self.prog}: {message}; see {self.prog} --help")
        sys.exit(EXIT_UNUSABLE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse the arguments of this parser's command.

        Unknown arguments are refused here and not by the main parser, so that the error names the command's ``--help``.
        """
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a message to ``file``. If it cannot be written, ``exit`` ends with ``EXIT_REFUSED``."""
        try:
            (file or sys.stderr).write(message or "")
        except BrokenPipeError:
            pass  # the reader has seen enough
        except OSError:
            self._is_unwritten = True

    def exit(self, status: int = EXIT_DONE, message: str | None = None) -> NoReturn:
        """Exit after the help or the version was printed; with ``EXIT_REFUSED`` if the output could not be written."""
        try:
            _flush()
        except OSError:
            _write_nowhere(sys.stdout)
            status = EXIT_REFUSED
        super().exit(EXIT_REFUSED if self._is_unwritten else status, message)


def runs(parser: argparse.ArgumentParser, run: Run) -> None:
    """Let ``run`` carry out the parser's command; ``run`` returns the exit code.

    If the output of a command is no longer read, the command ends with exit code 0. A command that does more than print
    chooses another exit code: it calls ``parser.set_defaults(unread=...)``. A command that prints its errors in another
    form than plain text stores the function that prints them in ``arguments.complain``.
    """
    parser.set_defaults(run=run, command=parser.prog)


def open_standard_streams() -> None:
    """Make sure that every text can be written to the standard streams, however the command was started.

    A closed stream becomes the null device. Otherwise the next opened file would get the stream's number, and libraries
    would write their output into that file. Characters that the encoding lacks are printed as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # for as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # standard error has this handler in any case


def run_command(arguments: argparse.Namespace) -> int:
    """Carry out the parsed command; return the exit code.

    SIGTERM and SIGHUP end the command like Ctrl-C, so that the command cleans up. A command that handles signals
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
        # The reader of the output has gone, so no output can be written any more, not even at exit.
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

    Only a write would show that the reader has gone, and for a quiet table the block writes nothing. So another thread
    checks the output. The thread ends the block by SIGTERM, which also interrupts a call that waits for an answer.
    """
    main = threading.get_ident()

    def look() -> bool:
        if is_read(sys.stdout):
            return True
        signal.pthread_kill(main, signal.SIGTERM)
        return False

    with suppress(KeyboardInterrupt):
        # Signals interrupt only the main thread. Without the checking thread, the next write ends the block.
        is_watched = threading.current_thread() is threading.main_thread() and is_read(sys.stdout) is not None
        with repeated(look, READER_SECONDS, "reader") if is_watched else nullcontext():
            yield


def _sentence(error: StreamClientError | RuntimeError) -> str:
    """Return the text of an error of this package, or of a refused thread; raise any other ``RuntimeError`` again."""
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
        _say_last("")  # end the line in which the terminal shows ^C
    _say_last(f"{arguments.command}: {text}", getattr(arguments, "complain", complain))
    return code


def _say_last(text: str, say: Callable[..., None] = complain) -> None:
    """Print the last line of a command, if standard error can be written. A failure does not change the exit code."""
    try:
        say(*text.split("\n"))  # an error may have several lines; texts quoted in it have no line breaks
    except OSError:
        _write_nowhere(sys.stderr)


def _flush() -> None:
    """Write the buffered output now. Otherwise, without a reader, Python would complain at exit, with exit code 120."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _write_nowhere(sys.stdout)


def _write_nowhere(stream: Any) -> None:
    """Redirect a stream's buffered text, and all later text, to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A second SIGTERM does not interrupt the clean-up. A second Ctrl-C does, because the user is in a hurry.
    handlers = [RaisedBySignal(signal.SIGTERM, Terminated, once=True)]
    # SIGHUP stays ignored if it is ignored already, as under nohup.
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
