"""The program with the scripted engine: the command line, the log, the signals."""

import json
import signal
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from engine.scripted import DEFAULT_TEXT, split_words
from tests.event_source import done, joined_text, parse
from tests.process.program import serving, started
from tests.server import wait_until

SCRIPTED = ("--engine", "scripted")


def test_it_is_ready_in_seconds_and_says_how_to_try_it() -> None:
    with serving(*SCRIPTED) as program:
        wait_until(lambda: program.status("/readyz") == 200, 10)
        [line] = [line for line in program.text.splitlines() if "try: curl" in line]
        url = line.split("'")[1]
        assert done(parse(httpx.get(url).content))["finish_reason"] in ("stop", "length")


def test_it_says_a_script_at_the_pace_that_was_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["하나", " 둘", "\n"]))
    flags = ("--scripted-text", str(script), "--scripted-ttft-ms", "100", "--scripted-itl-ms", "50")
    with serving(*SCRIPTED, *flags, "--served-model-name", "mine") as program:
        program.wait_ready()
        events = parse(httpx.get(program.url + "/v1/stream?prompt=x").content)
        assert joined_text(events) == "하나 둘\n"
        assert events[0].json["model"] == "mine"
        assert done(events)["timing"]["ttft_ms"] == pytest.approx(100, abs=40)
        assert done(events)["timing"]["tpot_ms"] == pytest.approx(50, abs=20)


def test_over_tls_and_over_a_unix_socket_streams_are_whole(tmp_path: Path) -> None:
    """Neither has a socket that may be written past its transport."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(tz=UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "certificate").write_bytes(certificate.public_bytes(pem))
    (tmp_path / "key").write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))
    trust = ssl.create_default_context(cafile=tmp_path / "certificate")
    unix = httpx.HTTPTransport(uds=str(tmp_path / "socket"))
    for flags, origin, options in (
        (
            ("--ssl-keyfile", str(tmp_path / "key"), "--ssl-certfile", str(tmp_path / "certificate")),
            "https://localhost:{port}",
            {"verify": trust},
        ),
        (("--uds", str(tmp_path / "socket")), "http://localhost", {"transport": unix}),
    ):
        with serving(*SCRIPTED, "--scripted-itl-ms", "2", *flags) as program:
            wait_until(lambda: "is ready" in program.text, 20)
            with httpx.Client(base_url=origin.format(port=program.port), **options) as client:
                with ThreadPoolExecutor(8) as pool:
                    answers = list(pool.map(client.get, ["/v1/stream?prompt=x&max_tokens=30"] * 8))
            for answer in answers:
                events = parse(answer.content)
                assert joined_text(events) == "".join(split_words(DEFAULT_TEXT)[:30])
                assert done(events)["usage"]["completion_tokens"] == 30


def test_the_counter_of_made_tokens_stands_still_when_the_reader_leaves() -> None:
    def made() -> float:
        lines = httpx.get(program.url + "/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith("tailrace_scripted_tokens_total")).split()[1])

    with serving(*SCRIPTED) as program:
        program.wait_ready()
        with httpx.stream("GET", program.url + "/v1/stream?prompt=x") as response:
            chunks = response.iter_bytes()
            next(chunks)
            wait_until(lambda: made() > 2)
        count = made()
        with pytest.raises(AssertionError):
            wait_until(lambda: made() > count + 2, 0.3)


def test_the_access_log_holds_no_query_and_one_line_a_request() -> None:
    with serving(*SCRIPTED) as program:
        program.wait_ready()
        httpx.get(program.url + "/v1/stream?prompt=canary&max_tokens=1")
        httpx.get(program.url + "/v1/stream?prompt=canary&max_tokens=0")
        httpx.get(program.url + "/canary%0aINFO%20forged")
        wait_until(lambda: "/canary" in program.text)
        lines = [line for line in program.text.splitlines() if "tailrace.access" in line]
        assert "canary" not in "".join(line for line in lines if "/v1/stream" in line)
        assert sum("GET /v1/stream 200 completed" in line for line in lines) == 1
        assert sum("GET /v1/stream 400 invalid_request" in line for line in lines) == 1
        assert not any(line.startswith("INFO forged") for line in program.text.splitlines())


def test_a_json_log_has_the_parts_of_a_request_as_fields() -> None:
    with serving(*SCRIPTED, "--log-format", "json") as program:
        program.wait_ready()
        httpx.get(program.url + "/v1/stream?prompt=x&max_tokens=3", headers={"X-Request-Id": "mine"})
        wait_until(lambda: "mine" in program.text)
        entries = [json.loads(line) for line in program.text.splitlines()]
        [request] = [entry["request"] for entry in entries if entry.get("request", {}).get("id") == "mine"]
        assert {name: request[name] for name in ("method", "path", "route", "status", "outcome", "output_tokens")} == {
            "method": "GET", "path": "/v1/stream", "route": "/v1/stream", "status": 200, "outcome": "completed",
            "output_tokens": 3,
        }  # fmt: skip
        assert request["ttft_ms"] > 0
        assert request["tpot_ms"] > 0
        assert request["duration_ms"] > request["ttft_ms"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_process_ends_at_once_with_0(number: signal.Signals) -> None:
    with serving(*SCRIPTED) as program:
        program.wait_ready()
        program.signal_group(number)
        assert program.wait(2) == 0


def test_streams_in_flight_run_on_after_sigterm() -> None:
    with serving(*SCRIPTED, "--scripted-itl-ms", "30") as program:
        program.wait_ready()
        with httpx.stream("GET", program.url + "/v1/stream?prompt=x&max_tokens=30") as response:
            chunks = response.iter_bytes()
            body = next(chunks)
            program.signal_group(signal.SIGTERM)
            wait_until(lambda: program.status("/readyz") == 503)
            assert program.status("/healthz") == 200
            assert program.status("/v1/stream?prompt=x") == 503
            body += b"".join(chunks)
        assert done(parse(body))["usage"]["completion_tokens"] == 30
        assert program.wait(4) == 0


@pytest.mark.parametrize("second_signal", [False, True])
def test_what_is_left_after_the_timeout_gets_a_retryable_error(second_signal: bool) -> None:
    timeout = "60" if second_signal else "1"
    with serving(*SCRIPTED, "--scripted-ttft-ms", "60000", "--shutdown-timeout", timeout) as program:
        program.wait_ready()
        with httpx.stream("GET", program.url + "/v1/stream?prompt=x", timeout=30) as response:
            chunks = response.iter_bytes()
            body = next(chunks)
            program.signal_group(signal.SIGTERM)
            wait_until(lambda: program.status("/readyz") == 503)
            if second_signal:
                program.signal_group(signal.SIGTERM)
            body += b"".join(chunks)
        [start, error] = parse(body)
        assert (start.type, error.type) == ("start", "error")
        assert (error.json["code"], error.json["retryable"]) == ("draining", True)
        assert program.wait(5) == 0


def test_a_port_in_use_is_said_and_ends_it() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with started("app.py", *SCRIPTED, "--port", str(port)) as program:
            assert program.wait(10) != 0
            assert "address already in use" in program.text.lower()
            assert "Traceback" not in program.text


@pytest.mark.parametrize(
    ("flags", "env", "message"),
    [
        (("--max-body-bytes", "0"), {}, "must be an integer of at least 1, got 0"),
        (("--port", "70000"), {}, "there is no port 70000"),
        (("--stall-timeout", "soon"), {}, "must be a finite number of at least 0, got soon"),
        ((), {"TAILRACE_SHUTDOWN_TIMEOUT": "1.5"}, "must be an integer of at least 0, got 1.5"),
        (("--scripted-itl-ms", "nan"), {}, "must be a finite number"),
        ((), {"TAILRACE_MAX_BODY_BYTES": "many"}, "TAILRACE_MAX_BODY_BYTES"),
        ((), {"TAILRACE_SCRIPTED_TTFT_MS": "-1"}, "TAILRACE_SCRIPTED_TTFT_MS"),
        (("--scripted-text", "/nowhere"), {}, "/nowhere"),
    ],
)
def test_a_bad_command_line_is_said_and_ends_it(flags: tuple[str, ...], env: dict[str, str], message: str) -> None:
    with started("app.py", *SCRIPTED, *flags, env=env) as program:
        assert program.wait(10) != 0
        assert message in program.text
        assert "Traceback" not in program.text
