"""The document says what is served; schemathesis tries to catch the server at something else."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.scripted import Script, ScriptedEngine
from routes import openapi
from routes.application import HttpSettings
from routes.parameters import BODY_NAMES, QUERY_NAMES
from tests.server import RunningServer, running

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def attack(server: RunningServer, num_examples: int) -> str:
    """Run schemathesis against the server's own document; its report."""
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json",
            "--max-examples", str(num_examples), "--checks", CHECKS, "--seed", "1", "--request-timeout", "20",
            "--generation-database", "none", "--suppress-health-check", "all", "--no-color",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return done.stdout


def test_every_parameter_is_in_the_document_and_no_other() -> None:
    assert set(openapi.PARAMETERS | openapi.QUERY_ONLY) == QUERY_NAMES
    assert set(openapi.PARAMETERS | openapi.BODY_ONLY) == BODY_NAMES


@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing_on_the_scripted_engine() -> None:
    engine = ScriptedEngine(Script(["a", " b"], 0, 0))
    with running(engine, HttpSettings(access_log=False)) as server:
        attack(server, 100)
        assert server.num_in_flight == 0
        assert not engine.running
