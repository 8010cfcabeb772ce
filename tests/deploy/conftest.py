"""What the tests of `deploy/` look at: the manifests as `kubectl kustomize` renders them, and the application."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FOLDERS = ("base", "overlays/gpu")

Manifest = dict[str, Any]


def render(folder: str) -> list[Manifest]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl, of the package of that name")
    done = subprocess.run([kubectl, "kustomize", DEPLOY / "kubernetes" / folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


class Rendered(list[Manifest]):
    """The manifests of one folder."""

    def one(self, kind: str, name: str = "tailrace") -> Manifest:
        (found,) = [manifest for manifest in self if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)]
        return found

    @property
    def pod(self) -> Manifest:
        spec: Manifest = self.one("Deployment")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Manifest:
        (container,) = self.pod["containers"]
        return dict(container)


@pytest.fixture(scope="session", params=FOLDERS)
def manifests(request: pytest.FixtureRequest) -> Rendered:
    return Rendered(render(request.param))


@pytest.fixture(scope="session")
def gpu() -> Rendered:
    return Rendered(render("overlays/gpu"))
