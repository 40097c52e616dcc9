"""The operation DeleteRow, which deletes a row if the condition of the request holds."""

from __future__ import annotations

from streamclient.server.operations._single_write import single_row_write
from streamclient.wire.schema import OperationType

OPERATION = single_row_write("DeleteRow", OperationType.DELETE, "primary_key")
