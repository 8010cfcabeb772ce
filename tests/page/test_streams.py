"""A reader at the page: what is sent, what is seen, and what the engine does when the reader has enough."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Request, Route, expect

from engine.errors import Draining
from engine.scripted import Script, ScriptedEngine
from tests.page.browser import expect_state, last_answer, last_failure, read_by, send
from tests.page.conftest import Visit
from tests.server import RunningServer, running, wait_until

# Markup, a right-to-left word, an emoji of several code points, white space: all are text.
TOKENS = [
    "안녕",
    "하세요",
    ",",
    " <b>",
    "bold",
    "</b>",
    " <img src=x onerror=alert(1)>",
    "\n\n",
    " 👩‍👩‍👧",
    " שלום",
    "  two",
]
ITL_S = 0.03

both_readers = pytest.mark.parametrize("reader", ["EventSource", "fetch"])


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(ScriptedEngine(Script(TOKENS * 4, 0.1, ITL_S))) as server:
        yield server


@pytest.fixture(scope="module")
def endless() -> Iterator[RunningServer]:
    with running(ScriptedEngine(Script(["word "] * 5000, 0.02, 0.02))) as server:
        yield server


def is_idle(server: RunningServer) -> bool:
    assert isinstance(server.engine, ScriptedEngine)
    return not server.engine.running and server.num_in_flight == 0


def bodies(page: Page) -> list[list[dict[str, str]]]:
    """The conversations that the page sends from now on."""
    sent: list[list[dict[str, str]]] = []

    def on_request(request: Request) -> None:
        if request.method == "POST" and request.post_data:
            sent.append(json.loads(request.post_data)["messages"])

    page.on("request", on_request)
    return sent


@both_readers
def test_tokens_are_shown_as_they_come_and_as_text(server: RunningServer, visit: Visit, reader: str) -> None:
    left = server.metric("tailrace_requests_total", outcome="disconnected")
    page = visit(server.url)
    read_by(page, reader)
    page.evaluate(
        """() => {
            window.lengths = new Set();
            const look = () => window.lengths.add(document.querySelector(".answer")?.textContent.length ?? 0);
            new MutationObserver(look).observe(document.getElementById("log"), { childList: true, subtree: true });
        }"""
    )
    send(page)
    expect_state(page, "streaming")
    expect_state(page, "done")
    assert last_answer(page).evaluate("element => element.textContent") == "".join(TOKENS * 4)
    assert last_answer(page).evaluate("element => element.childElementCount") == 0
    assert page.evaluate("window.lengths.size") > len(TOKENS * 4) * 0.7
    wait_until(lambda: is_idle(server))
    assert server.metric("tailrace_requests_total", outcome="disconnected") == left  # it was read to its end


@both_readers
def test_the_figures_are_those_of_the_stream(server: RunningServer, visit: Visit, reader: str) -> None:
    page = visit(server.url)
    expect(page.locator("#in-flight")).to_have_text("0")
    read_by(page, reader)
    send(page)
    expect(page.locator("#in-flight")).to_have_text("1")
    expect_state(page, "done")
    expect(page.locator("#in-flight")).to_have_text("0")
    ttft, tpot = (float(page.locator(id).inner_text().split()[0].removesuffix("ms")) for id in ("#ttft", "#tpot"))
    assert 100 <= ttft < 1000
    assert tpot == pytest.approx(ITL_S * 1000, rel=0.2)
    assert float(page.locator("#rate").inner_text()) == pytest.approx(1000 / tpot, rel=0.02)
    expect(page.locator("#ttft-note")).to_contain_text("at the server")
    expect(page.locator("#rate-note")).to_have_text(f"{len(TOKENS * 4)} tokens")
    assert len(re.findall("M", page.locator("#bars").get_attribute("d") or "")) > len(TOKENS * 4) * 0.7
    expect(page.locator("#plot")).to_have_attribute("aria-label", re.compile(r"Median (2|3)\d\.\d ms, longest \d"))
    assert re.fullmatch(r"[\w-]{22}", page.locator("#id").inner_text())
    expect(page.locator("#imprint")).to_have_text("Tailrace serves scripted")


def by_button(page: Page) -> None:
    page.get_by_role("button", name="Stop").click()


def by_escape(page: Page) -> None:
    page.keyboard.press("Escape")


@both_readers
@pytest.mark.parametrize("stop", [by_button, by_escape])
def test_stopping_ends_the_work(
    endless: RunningServer, visit: Visit, reader: str, stop: Callable[[Page], None]
) -> None:
    page = visit(endless.url)
    read_by(page, reader)
    send(page)
    expect(last_answer(page)).to_contain_text("word word word")
    assert not is_idle(endless)
    stop(page)
    expect_state(page, "stopped")
    wait_until(lambda: is_idle(endless))
    expect(page.locator(".account")).to_contain_text("stopped by you")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()


def test_starting_over_stops_and_forgets(endless: RunningServer, visit: Visit) -> None:
    page = visit(endless.url)
    sent = bodies(page)
    send(page)
    expect(last_answer(page)).to_contain_text("word word word")
    page.get_by_role("button", name="Start over").click()
    wait_until(lambda: is_idle(endless))
    expect(page.locator(".turn")).to_have_count(0)
    send(page, "Anew")
    expect(last_answer(page)).to_contain_text("word")
    assert sent[-1] == [{"role": "user", "content": "Anew"}]


def close(page: Page) -> None:
    page.close()


def go_elsewhere(page: Page) -> None:
    page.goto("about:blank")


def be_put_aside(page: Page) -> None:
    """As by a browser that keeps what was left for the way back; a headless one does not."""
    page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true })), 0")


@both_readers
@pytest.mark.parametrize("leave", [close, go_elsewhere, be_put_aside])
def test_leaving_the_page_ends_the_work(
    endless: RunningServer, visit: Visit, reader: str, leave: Callable[[Page], None]
) -> None:
    page = visit(endless.url)
    read_by(page, reader)
    send(page)
    expect(last_answer(page)).to_contain_text("word word word")
    leave(page)
    wait_until(lambda: is_idle(endless))


@both_readers
def test_the_whole_conversation_is_sent(server: RunningServer, visit: Visit, reader: str) -> None:
    page = visit(server.url)
    sent = bodies(page)
    page.get_by_label("Max tokens").fill("3")
    read_by(page, reader)
    for question in ("하나?", "Two?"):
        send(page, question)
        expect_state(page, "done")
    answer = "".join(TOKENS[:3])
    assert sent[1] == [
        {"role": "user", "content": "하나?"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "Two?"},
    ]
    expect(page.locator(".answer")).to_have_text([answer, answer])
    expect(page.locator(".account").last).to_contain_text("cut at the limit")


@both_readers
def test_a_death_in_the_middle_is_told_in_a_sentence(visit: Visit, reader: str) -> None:
    with running(ScriptedEngine(Script(["word "] * 9, 0, 0.02, die_after=5))) as server:
        page = visit(server.url)
        read_by(page, reader)
        send(page, "first")
        # Another pod might go on with it; for 10 s the page tries.
        expect_state(page, "reconnecting")
        expect_state(page, "failed", timeout_s=40)
        expect(last_failure(page)).to_contain_text("The engine has died")
        expect(last_answer(page)).to_have_text("word " * 5)
        # Now it is known before the first byte, by a 503.
        send(page, "second")
        expect(page.locator(".failure")).to_have_count(2)
        expect(last_failure(page)).to_have_text("The engine has died. Try again in a moment.")
        expect(page.get_by_label("Message", exact=True)).to_have_value("second")


@both_readers
def test_a_refusal_is_told_in_the_servers_words(visit: Visit, reader: str) -> None:
    with running(ScriptedEngine(Script(["word"], max_model_len=4))) as server:
        page = visit(server.url)
        read_by(page, reader)
        sent = bodies(page)
        send(page, "one two three four five")
        expect(last_failure(page)).to_have_text("The prompt leaves no room for an answer.")
        send(page, "shorter")
        expect_state(page, "done")
        assert sent[-1] == [{"role": "user", "content": "shorter"}]  # what was refused is not sent again


@both_readers
def test_what_is_no_answer_of_tailrace_is_told_too(server: RunningServer, visit: Visit, reader: str) -> None:
    page = visit(server.url)
    read_by(page, reader)
    page.route("**/v1/stream*", lambda route: route.fulfill(status=502, body="<html>Bad gateway</html>"))
    send(page)
    expect(last_failure(page)).to_have_text("The server answered with 502.")
    page.route("**/v1/stream*", lambda route: route.abort())
    send(page)
    expect(last_failure(page)).to_have_text("The server does not answer.")
    expect(page.locator(".turn")).to_have_count(1)  # the same question, asked again
    page.unroute_all()
    send(page)
    expect_state(page, "done")


REASONED = """\
event: start
id: {id}:0
retry: 10
data: {{"id":"{id}","model":"thinker","created":1}}

id: {id}:2
data: {{"reasoning":"Let me <i>think</i>."}}

: keep-alive

id: {id}:3
data: {{"reasoning":" So.","token":"Beca"}}

"""
REST = """\
id: {id}:5
data: {{"token":"use 안녕 🙂"}}

event: done
id: {id}:5
data: {{"finish_reason":"stop","usage":{{"prompt_tokens":1,"completion_tokens":5,"total_tokens":6}},"timing":{{"ttft_ms":1,"tpot_ms":null}}}}

data: [DONE]

"""  # noqa: E501
ID = "0123456789abcdefghijkl"


def test_a_cut_event_source_comes_back_and_goes_on(server: RunningServer, visit: Visit) -> None:
    page = visit(server.url)
    page.evaluate(
        """() => {
            window.states = [];
            const look = () => window.states.push(document.getElementById("state").textContent);
            new MutationObserver(look).observe(document.getElementById("state"), { childList: true });
        }"""
    )
    parts = iter([REASONED, REST])

    def answer(route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=next(parts).format(id=ID))

    page.route("**/v1/streams/*", answer)
    send(page)
    expect_state(page, "done")
    expect(last_answer(page)).to_have_text("Because 안녕 🙂")
    assert page.evaluate("window.states") == ["waiting", "streaming", "reconnecting", "streaming", "done"]


def test_a_stream_that_cannot_be_continued_is_told_so(server: RunningServer, visit: Visit) -> None:
    page = visit(server.url)
    body = REASONED.format(id=ID)
    page.route("**/v1/streams/*", lambda route: route.fulfill(content_type="text/event-stream", body=body), times=1)
    send(page)  # the second request reaches the server, which does not know this id
    expect_state(page, "failed")
    expect(last_failure(page)).to_have_text("The connection was lost, and this stream cannot be continued.")
    expect(last_answer(page)).to_have_text("Beca")


def test_a_cut_fetch_comes_back_and_is_told_when_it_cannot_go_on(server: RunningServer, visit: Visit) -> None:
    page = visit(server.url)
    read_by(page, "fetch")
    page.route("**/v1/stream", lambda route: route.fulfill(body=REASONED.format(id=ID)), times=1)
    send(page)  # the second request reaches the server, which does not know this id
    expect_state(page, "failed")
    expect(last_failure(page)).to_have_text("The connection was lost, and this stream cannot be continued.")
    expect(last_answer(page)).to_have_text("Beca")


@both_readers
def test_a_stream_that_is_handed_over_goes_on_without_a_seam(visit: Visit, server: RunningServer, reader: str) -> None:
    continued = server.metric("tailrace_resumes_total", outcome="continued")
    page = visit(server.url)
    read_by(page, reader)
    send(page)
    expect_state(page, "streaming")
    for generation in list(server.supervisor.in_flight):
        server.run(generation.abort(Draining("this process is shutting down")))
    expect_state(page, "reconnecting")
    expect_state(page, "done")
    expect(last_answer(page)).to_have_text("".join(TOKENS * 4))
    assert server.metric("tailrace_resumes_total", outcome="continued") == continued + 1


def test_a_fetch_that_comes_byte_by_byte_is_read_whole(server: RunningServer, visit: Visit) -> None:
    page = visit(server.url)
    page.evaluate(
        """() => {
            const whole = window.fetch;
            window.fetch = async (...request) => {
                const answer = await whole(...request);
                const split = { transform: (chunk, out) => chunk.forEach((byte) => out.enqueue(Uint8Array.of(byte))) };
                return new Response(answer.body.pipeThrough(new TransformStream(split)), answer);
            };
        }"""
    )
    read_by(page, "fetch")
    page.get_by_label("Max tokens").fill(str(len(TOKENS)))
    send(page)
    expect_state(page, "done")
    assert last_answer(page).evaluate("element => element.textContent") == "".join(TOKENS)


@both_readers
def test_reasoning_is_dimmed_and_not_sent_again(server: RunningServer, visit: Visit, reader: str) -> None:
    page = visit(server.url)
    read_by(page, reader)
    sent = bodies(page)
    path = "**/v1/stream" if reader == "fetch" else "**/v1/streams/*"
    body = (REASONED + REST).format(id=ID)
    page.route(path, lambda route: route.fulfill(content_type="text/event-stream", body=body), times=1)
    send(page)
    expect_state(page, "done")
    expect(page.locator(".thought")).to_have_text("Let me <i>think</i>. So.")
    expect(last_answer(page)).to_have_text("Because 안녕 🙂")
    color = "element => getComputedStyle(element).color"
    assert page.locator(".thought").evaluate(color) != last_answer(page).evaluate(color)
    send(page, "And?")
    expect(page.locator(".turn")).to_have_count(2)
    assert sent[-1][1] == {"role": "assistant", "content": "Because 안녕 🙂"}
