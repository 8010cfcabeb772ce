"""The page, in a browser: the pod that answers is killed, and the answer goes on in another one."""

import json
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.engine.redis_server import needs_redis
from tests.event_source import joined_text, parse
from tests.nginx.proxy import needs_nginx
from tests.page.browser import expect_state, last_answer, launched, read_by, send
from tests.resume.pods import Pod, Site

pytestmark = [needs_redis, needs_nginx, pytest.mark.timeout(300)]

QUESTION = "Tell me a story about a river and the mill on it."
NUM_TOKENS = 150


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


def visit(browser: Browser, url: str, reader: str) -> Page:
    page = browser.new_page()
    page.goto(url)
    page.evaluate(
        """() => {
            window.states = [];
            const look = () => window.states.push(document.getElementById("state").textContent);
            new MutationObserver(look).observe(document.getElementById("state"), { childList: true });
        }"""
    )
    read_by(page, reader)
    page.get_by_label("Max tokens").fill(str(NUM_TOKENS))
    return page


def begin_on(pod: Pod, page: Page) -> None:
    """Ask until it is `pod` that answers; nginx sends each request to the next one."""
    for _ in range(10):
        before = pod.num_in_flight
        page.evaluate("window.states.length = 0")
        send(page, QUESTION)
        expect(last_answer(page)).not_to_be_empty(timeout=20_000)
        if pod.num_in_flight == before + 1:
            return
        page.get_by_role("button", name="Start over").click()
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
    raise AssertionError("never came to the pod that was wanted")


def test_an_answer_goes_on_when_its_pod_is_killed(real: Site, browser: Browser) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": NUM_TOKENS}
    answer = httpx.post(f"{real.pods[0].url}/v1/stream", content=json.dumps(body), timeout=60)
    text = joined_text(parse(answer.content))
    victim = real.pods[0]
    pages = {reader: visit(browser, real.proxy.url, reader) for reader in ("EventSource", "fetch")}
    for page in pages.values():
        begin_on(victim, page)
    victim.kill()
    for reader, page in pages.items():
        expect_state(page, "done", 60)
        assert last_answer(page).evaluate("element => element.textContent") == text, reader
        states = page.evaluate("window.states")
        assert states[:3] + states[-2:] == ["waiting", "streaming", "reconnecting", "streaming", "done"], states
        page.context.close()
