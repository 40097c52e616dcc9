"""The sentence for a table that does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamclient.cli.terminal.commands import CommandFailed
from streamclient.errors import DependencyException


@contextmanager
def named_if_missing(table: str) -> Iterator[None]:
    """End the command with a sentence that names the table if the service answers the block that it does not exist."""
    from streamclient.wire.service_errors import OBJECT_NOT_EXIST  # noqa: PLC0415

    try:
        yield
    except DependencyException as error:
        if error.code == OBJECT_NOT_EXIST:
            raise CommandFailed(f"table {table!r} does not exist; `streamclient tables list` names all") from error
        raise
