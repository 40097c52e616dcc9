"""Positions in a shard: the oldest record, an iterator, or the end.

A position points at the next record to read. Its text is what column ``Checkpoint`` of the status table holds, so a
position survives restarts and is understood by Java workers.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from streamclient.model import CheckpointPosition


@frozen
class Position:
    """Where reading continues."""

    text: str

    TRIM_HORIZON: ClassVar[Position]
    SHARD_END: ClassVar[Position]

    def __attrs_post_init__(self) -> None:
        if not self.text:
            raise ValueError("a position needs a non-empty text; the end of a shard is Position.SHARD_END")

    @property
    def is_shard_end(self) -> bool:
        """Whether the shard is closed and nothing is left to read."""
        return self.text == CheckpointPosition.SHARD_END

    @property
    def is_iterator(self) -> bool:
        """Whether the text is a shard iterator that can be passed to GetStreamRecord as it is."""
        return self.text not in (CheckpointPosition.SHARD_END, CheckpointPosition.TRIM_HORIZON)

    def __str__(self) -> str:
        return self.text


Position.TRIM_HORIZON = Position(CheckpointPosition.TRIM_HORIZON)
Position.SHARD_END = Position(CheckpointPosition.SHARD_END)
