"""Coming back to a stream that was cut: the rest of its text, one generation, and nobody else's stream."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from engine.errors import Overloaded
from engine.interface import AnyRequest
from engine.scripted import Script, ScriptedEngine, ScriptedSource
from routes.application import HttpSettings
from tests.event_source import Event, done, joined_text, parse
from tests.server import RunningServer, running, wait_until

WORDS = [f" {number}" for number in range(60)]
TEXT = "".join(WORDS)
HEAD = b"GET /v1/stream?prompt=x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running(ScriptedEngine(Script(WORDS, 0.005, 0.01))) as server:
        yield server


def engine_of(server: RunningServer) -> ScriptedEngine:
    assert isinstance(server.engine, ScriptedEngine)
    return server.engine


def read_some(
    server: RunningServer, num_tokens: int, last_event_id: str | None = None, headers: dict[str, str] | None = None
) -> list[Event]:
    """Start a stream, or come back to one; read until it has so many token events, and cut the connection."""
    given = dict(headers or {}) | ({"Last-Event-ID": last_event_id} if last_event_id else {})
    body = b""
    with server.client() as client, client.stream("GET", "/v1/stream?prompt=one+two", headers=given) as response:
        assert response.status_code == 200, response.read()
        for chunk in response.iter_bytes():
            body += chunk
            events = parse(body)
            if sum("token" in event.data for event in events) >= num_tokens and events:
                return events
    raise AssertionError("the stream ended before it was cut")


def come_back(server: RunningServer, last_event_id: str, headers: dict[str, str] | None = None) -> httpx.Response:
    with server.client() as client:
        return client.get("/v1/stream?prompt=x", headers=dict(headers or {}) | {"Last-Event-ID": last_event_id})


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 30, 59])
def test_a_cut_stream_goes_on_where_its_reader_was(server: RunningServer, num_tokens: int) -> None:
    first = read_some(server, num_tokens)
    wait_until(lambda: server.num_in_flight == 0, 2, "the abort")
    answer = come_back(server, first[-1].id)
    rest = parse(answer.content)
    assert joined_text(first) + joined_text(rest) == TEXT
    assert "start" not in [event.type for event in rest]
    stream_id = first[0].json["id"]
    ids = [event.id for event in [*first, *rest] if event.type == "message" and event.data != "[DONE]"]
    assert [id.rpartition(":")[0] for id in ids] == [stream_id] * len(ids)
    counts = [int(id.rpartition(":")[2]) for id in ids]
    assert counts == sorted(set(counts))
    assert counts[-1] == 60
    assert done(rest)["usage"] == {"prompt_tokens": 2, "completion_tokens": 60, "total_tokens": 62}
    assert server.metric("tailrace_resumes_total", outcome="continued") == 1
    if num_tokens:
        assert server.metric("tailrace_prompt_tokens_total") == 2
    assert come_back(server, rest[-1].id).status_code == 204
    assert joined_text(parse(come_back(server, first[-1].id).content)) == joined_text(rest)


def test_nothing_is_made_between_the_cut_and_the_return(server: RunningServer) -> None:
    made: list[int] = []
    engine_of(server).on_tokens = made.append
    first = read_some(server, 5)
    wait_until(lambda: server.num_in_flight == 0, 2, "the abort")
    count = sum(made)
    threading.Event().wait(0.2)
    assert sum(made) == count <= 5 + 3
    come_back(server, first[-1].id)
    # What was made and not told before the cut is made once more, and no more than that.
    assert sum(made) == 60 + count - 5


def test_it_can_be_cut_again_and_again(server: RunningServer) -> None:
    events = read_some(server, 4)
    while len([event for event in events if "token" in event.data]) < 40:
        events += read_some(server, 6, events[-1].id)
    events += parse(come_back(server, events[-1].id).content)
    assert joined_text(events) == TEXT
    assert done(events)["usage"]["completion_tokens"] == 60


def test_a_reader_that_comes_back_takes_over_from_a_connection_that_looks_alive(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.settimeout(10)
        sock.sendall(HEAD + b"\r\n")
        data = b""
        while data.count(b'"token"') < 5:
            data += sock.recv(4096)
        seen = [line for line in data.splitlines() if line.startswith(b"id: ")][3].removeprefix(b"id: ").decode()
        rest = parse(come_back(server, seen).content)
        while piece := sock.recv(4096):
            data += piece
    assert joined_text(rest) == "".join(WORDS[int(seen.rpartition(":")[2]) :])
    assert b'"code":"stream_gone"' in data
    # The reader that lost it does not come back with an id that would take it over in turn.
    last = [line for line in data.splitlines() if line.startswith(b"id: ")][-1].removeprefix(b"id: ").decode()
    assert come_back(server, last).status_code == 410


def test_of_many_readers_with_one_id_one_gets_it(server: RunningServer) -> None:
    most = 0
    first = read_some(server, 3)

    def watch() -> None:
        nonlocal most
        while not stop.wait(0.001):
            most = max(most, len(engine_of(server).running))

    stop = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: come_back(server, first[-1].id), range(8)))
    stop.set()
    watcher.join()
    whole = [answer for answer in answers if answer.status_code == 200 and b"event: done" in answer.content]
    assert len(whole) >= 1
    for answer in whole:
        assert joined_text(first) + joined_text(parse(answer.content)) == TEXT
    for answer in answers:
        assert answer in whole or answer.status_code == 410 or b"stream_gone" in answer.content
    assert most == 1
    assert not engine_of(server).running


@pytest.mark.parametrize(
    "last_event_id",
    [
        "AAAAAAAAAAAAAAAAAAAAAA:0", ":", "x", "AAAAAAAAAAAAAAAAAAAAAA:-1", "AAAAAAAAAAAAAAAAAAAAAA:1:2",
        "A" * 60_000, "AAAAAAAAAAAAAAAAAAAAAA:99999999999", "%00:1", "../../etc:1", "*:0",
    ],
)  # fmt: skip
def test_an_id_that_names_no_stream_is_gone(server: RunningServer, last_event_id: str) -> None:
    answer = come_back(server, last_event_id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "stream_gone")
    assert not engine_of(server).running


def test_control_characters_in_the_header_are_refused(server: RunningServer) -> None:
    for bad in (b"\x01\x02:1", b"a\tb:1", b"\xff\xfe:1", b"\xed\xa0\x80:2"):
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.settimeout(10)
            sock.sendall(HEAD + b"Last-Event-ID: %b\r\n\r\n" % bad)
            answer = b"".join(iter(lambda: sock.recv(65536), b""))
        assert answer.split(b" ")[1] in (b"400", b"410")
        assert bad not in answer
    assert not engine_of(server).running


def test_a_position_that_no_event_had_is_gone(server: RunningServer) -> None:
    stream_id = read_some(server, 3)[0].json["id"]
    assert come_back(server, f"{stream_id}:58").status_code == 410


def test_another_key_is_another_reader() -> None:
    keys = [{"Authorization": f"Bearer {name}"} for name in ("one", "two")]
    with running(ScriptedEngine(Script(WORDS, 0.005, 0.01)), HttpSettings(api_keys=("one", "two"))) as server:
        first = read_some(server, 3, headers=keys[0])
        assert come_back(server, first[-1].id, keys[1]).status_code == 410
        assert come_back(server, first[-1].id).status_code == 401
        with server.client() as client:
            stream_id = first[0].json["id"]
            # Its id is no capability: it was not asked for by an address of its own.
            assert client.get(f"/v1/streams/{stream_id}").status_code == 410
            assert client.get(f"/v1/streams/{'A' * 22}", headers={"Last-Event-ID": first[-1].id}).status_code == 410
        rest = parse(come_back(server, first[-1].id, keys[0]).content)
        assert joined_text(first) + joined_text(rest) == TEXT


def test_the_window_closes() -> None:
    with running(ScriptedEngine(Script(WORDS, 0.005, 0.01)), resume_window_s=0.2) as server:
        first = read_some(server, 3)
        threading.Event().wait(0.5)
        assert come_back(server, first[-1].id).status_code == 410
        assert server.metric("tailrace_resumes_total", outcome="gone") == 1


def test_what_cannot_be_continued_exactly_is_refused_and_can_still_be_replayed() -> None:
    query = "/v1/stream?prompt=x&frequency_penalty=0.5"
    with running(ScriptedEngine(Script(WORDS, 0.005, 0.01))) as server, server.client() as client:
        with client.stream("GET", query) as response:
            first = parse(next(response.iter_bytes()))
        wait_until(lambda: server.num_in_flight == 0, 2, "the abort")
        assert come_back(server, first[-1].id).status_code == 410
        whole = parse(client.get(query).content)
        assert joined_text(parse(come_back(server, whole[4].id).content)) == joined_text(whole[5:])


def test_a_stream_that_could_not_go_on_now_can_later() -> None:
    class Busy(ScriptedEngine):
        is_busy = False

        async def submit(self, request: AnyRequest, request_id: str) -> ScriptedSource:
            if self.is_busy:
                raise Overloaded("too many requests")
            return await super().submit(request, request_id)

    engine = Busy(Script(WORDS, 0.005, 0.01))
    with running(engine) as server:
        first = read_some(server, 3)
        engine.is_busy = True
        assert come_back(server, first[-1].id).status_code == 503
        engine.is_busy = False
        assert joined_text(first) + joined_text(parse(come_back(server, first[-1].id).content)) == TEXT


def test_a_cancelled_stream_has_ended(server: RunningServer) -> None:
    with server.client() as client, server.client() as other:
        with client.stream("GET", "/v1/stream?prompt=x") as response:
            chunks = response.iter_bytes()
            body = next(chunks)
            stream_id = parse(body)[0].json["id"]
            assert other.delete(f"/v1/streams/{stream_id}").status_code == 204
            body += b"".join(chunks)
        events = parse(body)
        assert done(events)["finish_reason"] == "cancelled"
        assert come_back(server, events[-1].id).status_code == 204
