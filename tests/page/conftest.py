"""One headless browser a module, and a page of it for each test."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request

from tests.page.browser import launched

Visit = Callable[..., Page]


# Not longer than a module: while Playwright runs, no other test of this thread could run a loop of its own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens the page at an address. When the test ends, the page must not have complained or asked another host."""
    complaints: list[str] = []
    hosts: set[str] = set()

    def on_console(message: ConsoleMessage) -> None:
        # The browser itself reports each answer that is not a success; the page shows those as sentences.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            complaints.append(message.text)

    def on_request(request: Request) -> None:
        hosts.add(urlsplit(request.url).netloc)

    def visit(url: str, width: int = 1280, height: int = 800, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.on("console", on_console)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", on_request)
        page.goto(url)
        return page

    yield visit
    for context in browser.contexts:
        context.close()
    assert not complaints
    assert len(hosts - {""}) <= 1  # "" is that of the icon, a data: address
