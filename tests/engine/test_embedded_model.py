"""The cache of the embedded model: made once, whole or not at all. One test makes it for real."""

import json
import threading
from pathlib import Path

import pytest

from engine import embedded_model

FILES = {"config.json": "{}", "model.safetensors": "weights", "tokenizer.json": "{}"}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversions so far, by a stand-in that writes small files; the cache is empty."""
    calls: list[Path] = []

    def convert(gguf: Path, folder: Path) -> None:
        calls.append(folder)
        folder.mkdir()
        for name, text in FILES.items():
            (folder / name).write_text(text)

    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded_model, "convert", convert)
    return calls


def test_a_second_start_does_not_prepare_it_again(made: list[Path]) -> None:
    assert embedded_model.prepare() == embedded_model.prepare()
    assert len(made) == 1


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_cache_that_lost_something_is_made_again(made: list[Path], name: str, damage: str) -> None:
    file = embedded_model.prepare() / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_text(file.read_text()[:-1])
    folder = embedded_model.prepare()
    assert len(made) == 2
    assert {path.name for path in folder.iterdir()} == {*FILES, "manifest.json"}
    assert (folder / "model.safetensors").read_text() == "weights"


def test_an_interrupted_preparation_leaves_nothing(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = embedded_model.convert

    def interrupted(gguf: Path, folder: Path) -> None:
        whole(gguf, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded_model, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embedded_model.prepare()
    assert [path.name for path in embedded_model.cache_dir().iterdir() if path.is_dir()] == []
    monkeypatch.setattr(embedded_model, "convert", whole)
    assert embedded_model.prepare().is_dir()


def test_two_that_start_at_once_make_it_once(made: list[Path]) -> None:
    threads = [threading.Thread(target=embedded_model.prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(made) == 1


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAILRACE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert embedded_model.cache_dir() == Path("/somewhere/tailrace")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert embedded_model.cache_dir() == Path.home() / ".cache" / "tailrace"


def test_the_package_really_turns_into_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path))
    folder = embedded_model.prepare()
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["dtype"]) == ("llama", 30, "bfloat16")
    assert (folder / "model.safetensors").stat().st_size > 250 << 20
    assert "im_start" in (folder / "chat_template.jinja").read_text()
