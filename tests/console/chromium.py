"""A Chromium for tests of pages: that of the system. Tests are skipped by name where it is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.patience import PATIENCE_SECONDS, until

REASON = "the package playwright or a Chromium is not installed"

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""The commands of browsers that the tests can drive, the first one that is there."""


def path_of_chromium() -> str | None:
    """Return the path of the system's Chromium."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    """Lend a browser without a window, started with further arguments."""
    playwright = pytest.importorskip("playwright.sync_api", reason=REASON)
    path = path_of_chromium()
    if path is None:
        pytest.skip(REASON)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", *arguments])
        try:
            yield browser
        finally:
            browser.close()


_IS_ANSWERED = """!!state.docs.about && topics().every((topic) => state.docs[topic]) && !due
    && (place().name !== "shard" || !!state.detail?.doc)"""


def await_answer(page: Any) -> None:
    """Wait until a page has every document that it follows, and shows them."""
    page.locator("#page h1").first.wait_for()
    until(lambda: page.evaluate(_IS_ANSWERED), lambda: page.locator("#page").inner_text())


class Seen:
    """A page of a console in a browser, and everything that the browser complained of or requested elsewhere."""

    def __init__(self, browser: Any, port: int, **options: Any) -> None:
        self.address = f"http://127.0.0.1:{port}/"
        self.context = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_SECONDS * 1000)
        self.messages: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: self.messages.append(f"dialog {dialog.message}"))
        self.page.on("request", self._requested)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(self.address):
            self.foreign.append(request.url)

    def open(self, place: str = "") -> Any:
        """Open a page of the console, and wait until it is live and shows the first answers."""
        self.page.goto(f"{self.address}#/{place}")
        self.page.locator("#live").get_by_text("live").wait_for()
        await_answer(self.page)
        return self.page


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
