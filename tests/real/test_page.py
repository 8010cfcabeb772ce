"""The page and the browser's own `EventSource` with the real engine."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page.browser import expect_state, last_answer, launched, read_by, send
from tests.real.test_leaving import assert_stands_still, is_quiet, num_running
from tests.server import RunningServer, wait_until

# A browser comes back after a second, and would do so again and again: so long shows that it has stopped.
OPEN_AFTER_DONE_S = 15


# Not longer than this module: while Playwright runs, no other test of this thread could run a loop of its own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(server: RunningServer, browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(server.url)
    yield page
    page.context.close()


@pytest.mark.parametrize("reader", ["EventSource", "fetch"])
def test_stop_on_the_page_reaches_the_engine(server: RunningServer, page: Page, reader: str) -> None:
    page.get_by_label("Max tokens").fill("1500")
    read_by(page, reader)
    send(page, "Tell me a very long story about a river and every mill on it.")
    expect(last_answer(page)).not_to_be_empty()
    expect_state(page, "streaming")
    assert num_running(server) == 1
    page.get_by_role("button", name="Stop").click()
    expect_state(page, "stopped")
    wait_until(lambda: is_quiet(server), 2)
    assert_stands_still(server)


def test_a_conversation_is_answered_and_measured(server: RunningServer, page: Page) -> None:
    for question in ("What is the capital of France?", "And of Korea?"):
        page.get_by_label("Max tokens").fill("12")
        send(page, question)
        expect_state(page, "done", 30)
    expect(page.locator(".turn")).to_have_count(2)
    expect(last_answer(page)).not_to_be_empty()
    expect(page.locator("#ttft-note")).to_contain_text("at the server")


@pytest.mark.timeout(OPEN_AFTER_DONE_S + 120)
def test_an_event_source_left_open_starts_one_generation(server: RunningServer, page: Page) -> None:
    """Nobody closes it: when the body ends, the browser comes back by itself, and must be told to stop."""
    started = server.metric("vllm:request_success_total")
    statuses: list[int] = []
    page.on("response", lambda response: statuses.append(response.status) if "/v1/streams/" in response.url else None)
    page.evaluate(
        """async () => {
            const body = JSON.stringify({ prompt: "The sky is", max_tokens: 8 });
            const { url } = await (await fetch("v1/streams", { method: "POST", body })).json();
            window.done = 0;
            window.source = new EventSource(url);
            window.source.addEventListener("done", () => window.done++);
        }"""
    )
    page.wait_for_timeout(OPEN_AFTER_DONE_S * 1000)
    assert page.evaluate("[window.done, window.source.readyState === EventSource.CLOSED]") == [1, True]
    assert statuses == [200, 204]
    assert server.metric("vllm:request_success_total") == started + 1
