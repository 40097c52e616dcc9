"""Imports of optional packages, which the extras of streamclient install.

A package is imported on first use. If it is missing, the error names the extra to install.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from streamclient.errors import ConfigurationError, install_extra

PACKAGES = {
    "cli": ("rich",),
    "delta": ("deltalake", "pyarrow"),
    "iceberg": ("pyiceberg", "pyarrow"),
    "otel": ("opentelemetry",),
    "postgres": ("psycopg", "pyarrow"),
    "prometheus": ("prometheus_client",),
    "server": ("aiohttp", "re2"),
    "spark": ("pyspark", "pyarrow"),
}
"""The top-level modules that streamclient imports from each extra, by the extra's name. ``setup.cfg`` says which
versions of their packages are accepted."""


def require_extra(extra: str, needed_by: str, modules: Sequence[str] | None = None) -> None:
    """Require that ``modules``, by default all modules of ``extra``, are installed, without importing them.

    Raises:
        ConfigurationError: a module is missing; the message names the extra to install, and the feature ``needed_by``
            that needs the module.
    """
    missing = [name for name in modules or PACKAGES[extra] if find_spec(name) is None]
    if missing:
        verb = "needs it" if len(missing) == 1 else "needs them"
        raise ConfigurationError(
            f"{' and '.join(missing)} cannot be imported; {needed_by} {verb}: {install_extra(extra)}"
        )


def load(module: str, extra: str) -> Any:
    """Import a module that an extra of this package installs.

    Raises:
        ConfigurationError: the module is missing, or its own import fails; the message says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(f"{module} cannot be imported ({error}): {install_extra(extra)}") from error
