"""The snippets of docs/clients.md, as they stand there, against what `make serve` serves."""

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.program import ROOT, Program, started

PORT = 8000
PAGE = (ROOT / "docs" / "clients.md").read_text()
BLOCKS = [(language, code) for language, code in re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)]
RUN = {"python": [sys.executable], "sh": ["sh", "-e"], "js": ["node"]}
SUFFIX = {"python": ".py", "sh": ".sh", "js": ".mjs"}


@pytest.fixture(scope="module")
def server() -> Iterator[Program]:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.skip(f"port {PORT}, which the snippets name, is taken")
    with started("app.py", port=PORT) as program:
        program.wait_ready()
        yield program


def test_the_page_has_a_snippet_for_each_client() -> None:
    with_snippet = {section.partition("\n")[0] for section in PAGE.split("\n## ") if "```" in section}
    assert with_snippet >= {"OpenAI", "Anthropic", "Ollama", "curl", "httpx and httpx-sse", "fetch"}


@pytest.mark.parametrize(("language", "code"), BLOCKS, ids=[f"{number}" for number in range(len(BLOCKS))])
def test_a_snippet_works_as_it_stands(server: Program, tmp_path: Path, language: str, code: str) -> None:
    command = RUN[language]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is missing (package: {'nodejs' if command[0] == 'node' else command[0]})")
    file = tmp_path / f"snippet{SUFFIX[language]}"
    file.write_text(code)
    result = subprocess.run([*command, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    greedy = "anthropic" not in code  # whose client has no temperature any more
    assert ("Paris" in result.stdout) if greedy else len(result.stdout) > 10, result.stdout[-500:]
