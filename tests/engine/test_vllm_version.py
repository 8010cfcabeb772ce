"""The package that touches vLLM's inner parts does not start on a vLLM that it was not written for."""

import importlib
import importlib.metadata

import pytest

import engine.vllm


def test_another_minor_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(importlib.metadata, "version", lambda package: "0.33.1")
        with pytest.raises(ImportError, match=r"written for vLLM 0\.32\.x, and 0\.33\.1 is installed"):
            importlib.reload(engine.vllm)
    importlib.reload(engine.vllm)
