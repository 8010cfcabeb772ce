"""The image holds what is needed to run, and nothing else is sent to the builder."""

import re
from pathlib import Path

from tests.deploy.conftest import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
SOURCES = [
    source.strip("./")
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    for source in line.split()[:-1]
]


def test_exactly_the_pinned_packages_are_installed() -> None:
    assert re.findall(r"^RUN .*pip install (.*)$", DOCKERFILE, re.MULTILINE) == [
        "--no-cache-dir --no-deps -r /requirements.txt"
    ]
    assert "COPY requirements.txt /requirements.txt" in DOCKERFILE
    pins = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.match(r"[a-z0-9.-]+==\S+( ;.*)?$", pin) for pin in pins)


def test_every_module_that_the_application_imports_is_copied() -> None:
    own = {path.stem for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("*/__init__.py")}
    copied = {Path(source).stem for source in SOURCES}
    modules = [
        path
        for source in SOURCES
        for path in ([ROOT / source] if source.endswith(".py") else (ROOT / source).rglob("*.py"))
    ]
    imported = {
        name for path in modules for name in re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(modules) > 30
    assert imported & own <= copied


def test_the_build_context_is_what_is_copied() -> None:
    first, *rest = (ROOT / ".dockerignore").read_text().split()
    assert first == "*"
    assert {line.removeprefix("!") for line in rest if line.startswith("!")} == set(SOURCES)
    assert "**/__pycache__" in rest


def test_the_health_check_asks_an_address_of_the_manifests() -> None:
    assert "http://127.0.0.1:8000/healthz" in DOCKERFILE
    assert "EXPOSE 8000" in DOCKERFILE
