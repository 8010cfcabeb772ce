"""Every manifest, by the schema of its kind."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.deploy.conftest import Manifest, Rendered

# The oldest Kubernetes that is supported upstream as this is written, and the newest whose schemas are here.
VERSIONS = ("1.34", "1.37")

CORE_GROUPS = ("v1", "apps/v1", "networking.k8s.io/v1", "policy/v1", "rbac.authorization.k8s.io/v1")
NPM_KINDS = {"Gateway", "HTTPRoute", "ScaledObject", "ServiceMonitor"}
NPM_PACKAGES = (
    "@kubernetes-models/gateway-api@2.0.0",
    "@kubernetes-models/keda@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
)
SCRIPT = Path(__file__).with_name("validate.mjs")

# A DNS subdomain of RFC 1123, as the references of these kinds ask for in names.
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_own_kinds_are_valid(manifests: Rendered, version: str) -> None:
    core = [manifest for manifest in manifests if manifest["apiVersion"] in CORE_GROUPS]
    assert len(core) >= 6
    for manifest in core:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_no_manifest_is_left_unchecked(manifests: Rendered) -> None:
    unchecked = {manifest["kind"] for manifest in manifests if manifest["apiVersion"] not in CORE_GROUPS}
    assert unchecked <= NPM_KINDS | {"InferencePool"}


@pytest.fixture(scope="session")
def validators() -> Path:
    """A folder with the packages, installed once a machine."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, for " + ", ".join(NPM_PACKAGES))
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tailrace-tests"
    folder = cache / hashlib.sha256(" ".join(NPM_PACKAGES).encode()).hexdigest()[:16]
    complete = folder / "complete"
    if not complete.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--no-save", *NPM_PACKAGES]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        except subprocess.TimeoutExpired:
            pytest.skip("npm does not answer; needs " + ", ".join(NPM_PACKAGES))
        if done.returncode != 0:
            pytest.skip(f"npm cannot install {', '.join(NPM_PACKAGES)}: {done.stderr[-300:]}")
        complete.touch()
    return folder


def problems_by_npm(manifests: list[Manifest], folder: Path) -> dict[str, list[str]]:
    # Node looks for packages beside the script.
    script = shutil.copy(SCRIPT, folder)
    done = subprocess.run(["node", script], input=json.dumps(manifests), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    problems: dict[str, list[str]] = json.loads(done.stdout)
    return problems


def test_the_operators_kinds_are_valid(manifests: Rendered, validators: Path) -> None:
    expected = {manifest["kind"] for manifest in manifests} & NPM_KINDS
    assert expected >= {"ScaledObject", "ServiceMonitor"}
    assert problems_by_npm(manifests, validators) == {kind: [] for kind in expected}


def test_a_misspelt_field_would_be_found(gpu: Rendered, validators: Path) -> None:
    monitor = json.loads(json.dumps(gpu.one("ServiceMonitor")))
    monitor["spec"]["endpoints"][0]["intervall"] = "15s"
    scaled = json.loads(json.dumps(gpu.one("ScaledObject")))
    scaled["spec"]["triggers"][0]["metadata"]["threshold"] = 4
    problems = problems_by_npm([monitor, scaled], validators)
    assert problems["ServiceMonitor"] == ["spec.endpoints.0.intervall: no such field"]
    assert "threshold must be string" in problems["ScaledObject"][0]


def test_the_inference_pool_is_what_its_reference_asks_for(gpu: Rendered) -> None:
    """Group inference.networking.k8s.io, version v1: InferencePoolSpec and what it is made of."""
    pool = gpu.one("InferencePool")
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    spec = pool["spec"]
    assert spec.keys() >= {"selector", "targetPorts", "endpointPickerRef"}
    assert spec.keys() <= {"selector", "targetPorts", "endpointPickerRef", "appProtocol"}

    assert spec["selector"].keys() == {"matchLabels"}
    assert spec["selector"]["matchLabels"]
    for value in spec["selector"]["matchLabels"].values():
        assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value)

    numbers = [port["number"] for port in spec["targetPorts"]]
    assert 1 <= len(numbers) <= 8
    assert len(numbers) == len(set(numbers))
    assert all(port.keys() == {"number"} and 1 <= port["number"] <= 65535 for port in spec["targetPorts"])

    picker = spec["endpointPickerRef"]
    assert picker.keys() <= {"group", "kind", "name", "port", "failureMode"}
    assert picker.get("group", "") == ""
    assert picker.get("kind", "Service") == "Service"
    assert NAME.fullmatch(picker["name"])
    assert picker["port"].keys() == {"number"}  # required where the kind is Service
    assert picker.get("failureMode", "FailClose") in ("FailOpen", "FailClose")
