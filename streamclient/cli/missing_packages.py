"""A table that is not there, said in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamclient.cli.terminal.commands import CommandFailed
from streamclient.errors import DependencyException


@contextmanager
def named_if_missing(table: str) -> Iterator[None]:
    """Within it, the service's answer that the table does not exist ends the command with a sentence that names it."""
    from streamclient.wire.service_errors import OBJECT_NOT_EXIST  # noqa: PLC0415

    try:
        yield
    except DependencyException as error:
        if error.code == OBJECT_NOT_EXIST:
            raise CommandFailed(f"there is no table {table!r}; `streamclient tables list` names all") from error
        raise
