"""Consume Tablestore change streams: leased workers, checkpoints, Spark sinks, and a local Tablestore."""

from streamclient._version import __version__

__all__ = ["__version__"]
