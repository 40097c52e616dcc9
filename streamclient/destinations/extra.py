"""The heavy libraries, imported on first use. ``import streamclient.destinations`` works without them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from streamclient.checks import missing_extra


def pyarrow() -> Any:
    """The module ``pyarrow``."""
    return load("pyarrow", "delta")


def compute() -> Any:
    """The module ``pyarrow.compute``."""
    return load("pyarrow.compute", "delta")


def load(module: str, extra: str) -> Any:
    """A module that an extra of this package installs.

    Raises:
        ConfigurationError: it is not there; the message says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra(f"{module} cannot be imported ({error})", extra) from error
