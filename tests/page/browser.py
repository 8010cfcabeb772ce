"""What a reader does on the page, and what it sees there."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """Debian's headless chromium; skips the test where it is not installed."""
    if not CHROMIUM.exists():
        pytest.skip("needs Debian's package chromium")
    with sync_playwright() as playwright:
        # The sandbox needs what containers rarely have; the page comes from this very machine.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def send(page: Page, text: str = "Why?") -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def read_by(page: Page, reader: str) -> None:
    """`reader` is `EventSource` or `fetch`."""
    page.get_by_label(reader, exact=True).check()
    page.get_by_label("Message", exact=True).focus()


def expect_state(page: Page, state: str, timeout_s: float = 10) -> None:
    expect(page.locator("#state")).to_have_text(state, timeout=timeout_s * 1000)


def last_answer(page: Page) -> Locator:
    return page.locator(".answer").last


def last_failure(page: Page) -> Locator:
    return page.locator(".failure").last
