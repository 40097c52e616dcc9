"""The error message for a table that does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamclient.cli.terminal.commands import CommandFailed
from streamclient.errors import DependencyException


@contextmanager
def named_if_missing(table: str) -> Iterator[None]:
    """End the command with an error if a call in the ``with`` block fails because a table does not exist.

    Raises:
        CommandFailed: the table does not exist; the message names ``table``.
    """
    from streamclient.wire.service_errors import OBJECT_NOT_EXIST  # noqa: PLC0415

    try:
        yield
    except DependencyException as error:
        if error.code == OBJECT_NOT_EXIST:
            raise CommandFailed(f"table {table!r} does not exist; `streamclient tables list` names all") from error
        raise
