"""A Chromium for tests of pages: that of the system. Tests are skipped by name where it is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

REASON = "the package playwright or a Chromium is not installed"


@contextmanager
def chromium() -> Iterator[Any]:
    """Lend a browser without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason=REASON)
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip(REASON)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """Open a page; at the end it must have asked for nothing but itself, and the browser had nothing to complain."""
    context = browser.new_context(**options)
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    yield page
    context.close()
    assert complaints == []
    assert [url for url in requests if url.partition("#")[0] != address.partition("#")[0] and url != "data:,"] == []
