"""How a command ends: its exit code, and its one line on standard error."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from streamclient.errors import StreamClientError
from streamclient.signals import RaisedBySignal
from streamclient.terminal.output import complain, width_of

EXIT_DONE = 0
EXIT_REFUSED = 1
"""The command was not allowed, not carried out entirely, or found something that is not as it should be."""
EXIT_UNUSABLE = 2
"""Wrong arguments, or a service or table that cannot be reached or read."""
EXIT_INTERRUPTED = 130
"""As shells have it for SIGINT."""
EXIT_TERMINATED = 128 + signal.SIGTERM
"""As shells have it for SIGTERM."""

Run = Callable[[argparse.Namespace], int]


class CommandFailed(Exception):
    """A command ends here. The text is for the user; the exit code is that of wrong arguments by default."""

    def __init__(self, message: str, exit_code: int = EXIT_UNUSABLE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what Ctrl-C does, with another exit code."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints look like those of the commands: one line, and where to read more."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and exit."""
        complain(f"{self.prog}: {message}; see {self.prog} --help")
        sys.exit(EXIT_UNUSABLE)


def runs(parser: argparse.ArgumentParser, run: Run) -> None:
    """Have a parser's command carried out by ``run``, which returns the exit code."""
    parser.set_defaults(run=run, command=parser.prog)


def run_command(arguments: argparse.Namespace) -> int:
    """Carry out what was parsed; the exit code.

    A SIGTERM ends it like Ctrl-C: whatever a command cleans up, it cleans up then, too. A command that handles signals
    itself sets its own handlers.
    """
    try:
        with _interrupted_by_signals():
            code: int = arguments.run(arguments)
            return code
    except CommandFailed as error:
        return _end(arguments, str(error), error.exit_code)
    except StreamClientError as error:
        return _end(arguments, str(error), EXIT_UNUSABLE)
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing more can be said there, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except OSError as error:
        if error.filename is None:
            raise
        return _end(arguments, f"cannot use {error.filename}: {error.strerror}", EXIT_UNUSABLE)
    except Terminated:
        return _end(arguments, "terminated", EXIT_TERMINATED)
    except KeyboardInterrupt:
        return _end(arguments, "interrupted", EXIT_INTERRUPTED)


def _end(arguments: argparse.Namespace, text: str, code: int) -> int:
    if width_of(sys.stderr) is not None and text == "interrupted":
        complain("")  # behind the terminal's own ^C
    complain(f"{arguments.command}: {text}")
    return code


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Cleaning up is not interrupted by a second SIGTERM; it is by a second Ctrl-C, which means hurry.
    handlers = [RaisedBySignal(signal.SIGTERM, Terminated, once=True)]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handlers.append(RaisedBySignal(signal.SIGINT, KeyboardInterrupt, once=False))
    for handler in handlers:
        handler.install()
    try:
        yield
    finally:
        for handler in reversed(handlers):
            handler.remove()
