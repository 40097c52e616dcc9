"""The pytest option that writes the history of a failed simulation as a page for a browser.

The fixtures are in ``streamclient.testing``. This plugin is separate, because it needs ``streamclient.console`` for the
page, and ``streamclient.testing`` does not import that package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--simulation-page``."""
    group = parser.getgroup("streamclient", "simulations of record processors")
    group.addoption(
        "--simulation-page", metavar="DIR", help="write the history of a failed seed into this directory, as a page"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_streamclient_history(config: pytest.Config, test: str, history: Mapping[str, object]) -> str | None:
    """Write the page of a failed simulation, if the option is given; return a line that says where the page is."""
    folder = config.getoption("--simulation-page")
    if not folder:
        return None
    from streamclient.console.history_page import page_file  # noqa: PLC0415  # nothing is loaded until it is needed

    name = re.sub(r"[^\w.-]+", "-", test.replace("::", "-")).strip("-")
    path = Path(folder, f"{name}-seed-{history['seed']}.html")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page_file(history), encoding="utf-8", newline="\n")
    except OSError as error:
        return f"its page could not be written to {path}: {error.strerror}"
    return f"its page: {path}"
