"""Says at the start what a person needs, and holds back the rest of what vLLM and its libraries print.

Everything here is a default: whoever sets the variables sees it all, `VLLM_LOGGING_LEVEL=INFO` above all.
"""

import logging
import os
import sys

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


def set_up_logging() -> None:
    """Call before vLLM is imported. Logs go to stderr, a line each."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("tailrace", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
