"""The records of a batch as a flat table of Arrow, Polars or pandas: one row for each record.

The rows are made by ``streamclient.destinations.change_rows``. They have a column for each key column, a column for
each column that a record puts, and the added columns, for example ``_operation`` and ``_deleted_columns``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamclient.destinations.rows.change_rows import change_rows
from streamclient.destinations.rows.page_columns import columns_of_pages
from streamclient.errors import ConfigurationError
from streamclient.records import StreamRecord

if TYPE_CHECKING:
    from pyarrow import Table


def to_arrow(records: Sequence[StreamRecord], *, shard: str = "") -> Table:
    """Return the rows of ``records`` as a ``pyarrow.Table``, in the order of their sequence.

    ``shard`` becomes the value of the column ``_shard_id``. The column ``_commit`` is 0. If ``records`` are a page of a
    stream, or a part of a page, the function does not create record objects. Any thread may call it.

    Raises:
        CodecError: the records belong to different tables.
        ConfigurationError: pyarrow is missing.
    """
    of_page: Callable[[], Any] | None = getattr(records, "arrow", None)
    changes = records if of_page is None else columns_of_pages([of_page()])
    return change_rows(changes, shard=shard, number=0)


def to_polars(records: Sequence[StreamRecord], *, shard: str = "") -> Any:
    """Return the rows of ``to_arrow`` as a ``polars.DataFrame``.

    Raises:
        CodecError: the records belong to different tables.
        ConfigurationError: polars or pyarrow is missing.
    """
    return _library("polars").from_arrow(to_arrow(records, shard=shard))


def to_pandas(records: Sequence[StreamRecord], *, shard: str = "") -> Any:
    """Return the rows of ``to_arrow`` as a ``pandas.DataFrame`` with Arrow's types.

    With Arrow's types, a column of integers may have nulls. With pandas' own types, such a column would become floats.

    Raises:
        CodecError: the records belong to different tables.
        ConfigurationError: pandas or pyarrow is missing.
    """
    pandas = _library("pandas")
    return to_arrow(records, shard=shard).to_pandas(types_mapper=pandas.ArrowDtype)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"to_{name}() needs {name} ({error}): pip install {name}") from error
