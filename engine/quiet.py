"""What is printed: a line for each thing that a person or a log collector needs, and not what vLLM's start has to say.

The variables are defaults: whoever sets them sees it all, `VLLM_LOGGING_LEVEL=INFO` above all.
"""

import logging
import os
import sys

from pythonjsonlogger.json import JsonFormatter

DEFAULTS = {
    # vLLM reports usage to its makers unless told not to; here it is the user who turns that on.
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "true",
    # PyTorch's Python side warns that Triton is missing, which on the CPU it should be.
    "TORCH_LOGS": "-all",
    # The C++ side of PyTorch announces its NUMA binding as a warning.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # vLLM's engine and worker processes warn about deprecations inside of vLLM.
    "PYTHONWARNINGS": "ignore",
}


def hold_back() -> None:
    """Call before vLLM is imported; its processes inherit the variables."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def set_up_logging(log_format: str = "text") -> None:
    """Logs go to stderr, a line each: `text` for people, `json` for a collector."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        names = {"asctime": "time", "levelname": "level", "name": "logger"}
        handler.setFormatter(JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=names))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("tailrace", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
