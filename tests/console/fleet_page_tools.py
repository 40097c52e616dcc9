"""Pages of fleets with made documents in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from tests.console.chromium import Seen, await_answer
from tests.console.made_fleets import MadeConsole, MadeFleets

NOT_FOUND = ("404 (Not Found)",)
"""The browser tells a refused request on its console; the page of a shard that is not listed has one."""


class Shows(Protocol):
    """Opens a page with made documents; the browser may complain of nothing but what is excused."""

    def __call__(
        self, pages: MadeFleets, place: str = "", excused: tuple[str, ...] = (), **options: Any
    ) -> tuple[Any, MadeFleets]: ...


@contextmanager
def shown_fleets(browser: Any) -> Iterator[Shows]:
    """Lend a function that opens pages; at the end no page has complained, and none has asked for anything foreign."""
    made: list[tuple[Seen, tuple[str, ...]]] = []
    with ExitStack() as stack:

        def start(
            pages: MadeFleets, place: str = "", excused: tuple[str, ...] = (), **options: Any
        ) -> tuple[Any, MadeFleets]:
            console = stack.enter_context(MadeConsole(pages))
            seen = Seen(browser, console.console.port, **options)
            stack.callback(seen.context.close)
            made.append((seen, excused))
            seen.open(place)
            return seen.page, pages

        yield start
    for seen, excused in made:
        messages = [text for text in seen.messages if not any(part in text for part in excused)]
        assert (messages, seen.foreign) == ([], [])


_GO = """hash => new Promise(done => {
    if (location.hash === hash) return done();
    addEventListener("hashchange", () => requestAnimationFrame(() => done()), { once: true });
    location.hash = hash;
})"""


def go(page: Any, place: str) -> None:
    """Go to a page by its address, and wait until it shows itself."""
    page.evaluate(_GO, f"#/{place}")
    await_answer(page)


def text_of(page: Any, selector: str = "#page") -> str:
    return str(page.locator(selector).inner_text()).replace("\u202f", "")
