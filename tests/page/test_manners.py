"""How the page behaves whatever it shows: its policy, keyboard, key, prefix, sizes and colours."""

import base64
import hashlib
import re
from collections.abc import Iterator
from itertools import product
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from engine.scripted import Script, ScriptedEngine
from routes.application import HttpSettings
from tests.page.browser import expect_state, last_answer, last_failure, read_by, send
from tests.page.conftest import Visit
from tests.server import RunningServer, running


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(ScriptedEngine(Script(["word ", "x" * 400, "\n"] * 10, 0.02, 0.005))) as server:
        yield server


def test_the_policy_allows_the_page_itself_and_nothing_else(server: RunningServer) -> None:
    with server.client() as client:
        answer = client.get("/")
        assert client.head("/").status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for element in ("script", "style"):
        [text] = re.findall(f"<{element}[^>]*>(.*?)</{element}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{element}-src"] == f"'sha256-{digest}'"
    assert not re.search(
        r"""innerHTML|insertAdjacentHTML|document\.write|\son\w+=|(src|href)=["'](https?:)?//""", answer.text
    )


def test_another_host_and_injected_scripts_are_blocked(server: RunningServer, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(server.url)
    blocked = page.evaluate(
        """async () => {
            const blocked = [];
            addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));
            await fetch("http://localhost:9/").catch(() => {});
            const script = document.createElement("script");
            script.textContent = "window.hacked = true";
            document.body.append(script);
            await new Promise((resolve) => setTimeout(resolve));
            return [...blocked, window.hacked];
        }"""
    )
    assert blocked == ["connect-src", "script-src-elem", None]
    page.context.close()


@pytest.mark.parametrize("reader", ["EventSource", "fetch"])
@pytest.mark.parametrize("place", ["/a/prefix/", "/a/prefix"])
def test_it_works_behind_a_prefix(server: RunningServer, browser: Browser, place: str, reader: str) -> None:
    page = browser.new_page()
    paths: list[str] = []

    def proxy(route: Route) -> None:
        """As an ingress that strips the prefix."""
        path = urlsplit(route.request.url).path
        paths.append(path)
        route.continue_(url=server.url + path.removeprefix("/a/prefix"))

    page.route(server.url + "/**", proxy)
    page.goto(server.url + place)
    read_by(page, reader)
    send(page)
    expect_state(page, "done")
    expect(page.locator("#in-flight")).to_have_text("0")
    assert all(path.startswith("/a/prefix") for path in paths)
    page.context.close()


def test_a_key_is_asked_for_when_it_is_needed_and_kept_in_the_tab(visit: Visit) -> None:
    engine = ScriptedEngine(Script(["word"] * 3))
    with running(engine, HttpSettings(access_log=False, api_keys=("secret",))) as server:
        page = visit(server.url)
        expect(page.get_by_label("API key")).to_be_hidden()
        send(page)
        expect(last_failure(page)).to_have_text("This server asks for an API key.")
        for key in ("wrong", "secret"):
            expect(page.get_by_label("API key")).to_be_focused()
            page.get_by_label("API key").fill(key)
            page.keyboard.press("Enter")
            expect_state(page, "failed" if key == "wrong" else "done")
        expect(page.locator(".turn")).to_have_count(1)
        expect(page.get_by_label("API key")).to_be_hidden()
        assert page.evaluate("[localStorage.length, document.cookie, Object.values(sessionStorage)]") == [
            0,
            "",
            ["secret"],
        ]
        page.reload()
        read_by(page, "fetch")
        send(page)
        expect_state(page, "done")


def test_the_keyboard_is_enough(server: RunningServer, visit: Visit) -> None:
    page = visit(server.url)
    message = page.get_by_label("Message", exact=True)
    expect(message).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(message).to_have_value("one\ntwo")
    message.dispatch_event("keydown", {"key": "Enter", "isComposing": True})  # a syllable is being put together
    expect(message).to_have_value("one\ntwo")
    expect(page.locator(".turn")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.locator(".asked")).to_have_text("one\ntwo")
    expect_state(page, "done")
    page.keyboard.press("Enter")  # an empty message is not sent
    expect(page.locator(".turn")).to_have_count(1)
    names = []
    for _ in range(4):
        page.keyboard.press("Tab")
        names.append(
            page.evaluate("document.activeElement.labels?.[0]?.innerText || document.activeElement.textContent")
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert [name.strip() for name in names] == ["Send", "EventSource", "Max tokens", "Start over"]


def test_what_is_read_out(server: RunningServer, visit: Visit) -> None:
    page = visit(server.url)
    expect(page.get_by_role("status")).to_have_text("ready")
    send(page)
    expect_state(page, "done")
    expect(page.get_by_role("log")).to_contain_text("word")
    expect(page.get_by_role("article")).to_have_attribute("aria-busy", "false")


@pytest.mark.parametrize(("width", "height"), [(320, 568), (390, 780), (768, 1024), (1280, 800)])
def test_nothing_is_wider_than_the_screen(server: RunningServer, visit: Visit, width: int, height: int) -> None:
    page = visit(server.url, width, height)
    send(page, "y" * 300)
    expect_state(page, "done")
    for element in ("document.documentElement", "document.getElementById('talk')"):
        assert page.evaluate(f"{element}.scrollWidth - {element}.clientWidth") <= 0
    for control in (
        page.get_by_label("Message", exact=True),
        page.get_by_role("button", name="Send"),
        last_answer(page),
    ):
        expect(control).to_be_in_viewport()
    expect(page.locator("#plot")).to_be_in_viewport(ratio=1)


def luminance(color: str) -> float:
    """WCAG 2.2's relative luminance of `#rrggbb`."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_by_day_and_by_night(server: RunningServer, visit: Visit, scheme: str) -> None:
    page = visit(server.url, color_scheme=scheme)

    def color(name: str) -> str:
        return str(page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()"))

    assert (luminance(color("paper")) < 0.1) == (scheme == "dark")
    for text, ground in product(("ink", "soft", "alarm", "water"), ("paper", "panel")):
        assert contrast(color(text), color(ground)) >= 4.5, (text, ground)  # WCAG 2.2, 1.4.3
    for ground in ("paper", "panel"):
        assert contrast(color("edge"), color(ground)) >= 3  # 1.4.11


def test_the_server_is_polled_only_while_somebody_looks(server: RunningServer, browser: Browser) -> None:
    page = browser.new_page()
    page.clock.install()
    polls: list[str] = []
    page.on("request", lambda request: polls.append(request.url) if request.url.endswith("/metrics") else None)
    with page.expect_request("**/metrics"):
        page.goto(server.url)

    def polls_in_20_s() -> int:
        before = len(polls)
        page.clock.run_for(20_000)
        page.evaluate("0")  # what the page asked for has been heard of when it answers
        return len(polls) - before

    assert 8 <= polls_in_20_s() <= 12
    turn_to(page, hidden=True)
    assert polls_in_20_s() == 0
    turn_to(page, hidden=False)
    assert polls_in_20_s() >= 8
    page.context.close()


def turn_to(page: Page, hidden: bool) -> None:
    """A headless page is never behind another, so it is told that it is."""
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )
