"""vLLM's own command line, with the few defaults that differ here. Importing this module imports vLLM (6 s)."""

import argparse
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence

from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

from engine import embedded_model

# Enough for 46,000 tokens of the embedded model (23 KiB each), and small enough for any machine. vLLM's default on the
# CPU is 92 % of the memory, and it refuses to start where that much is not free.
EMBEDDED_KV_CACHE_BYTES = 1 << 30

# How many tokens the embedded model takes in one step on the CPU, of all prompts together: vLLM's default of 2,048
# would silence every other stream for seconds while prompts come in. More than its 128 requests at once.
EMBEDDED_MAX_NUM_BATCHED_TOKENS = 160

# How many of those may be of one prompt, beside other requests. A token costs the more, the more come before it: at the
# end of 2,000, a step of 150 takes half a second, and one of 64 a quarter. A question in a chat is shorter than that.
EMBEDDED_LONG_PREFILL_TOKENS = 64

# Flags of `vllm serve` that name something this program does not have. Said aloud, because they would be ignored.
WITHOUT_EFFECT = (
    "api_server_count", "disable_fastapi_docs", "enable_offline_docs", "enable_server_load_tracking",
    "enable_ssl_refresh", "enable_tokenizer_info_endpoint", "h11_max_header_count", "h11_max_incomplete_event_size",
    "enable_request_id_headers", "log_error_stack",
)  # fmt: skip

# Flags that would make this program something else; starting without them would not be what was asked for.
REFUSED = ("headless", "grpc", "grpc_port", "tokens_only", "enable_scale_out", "middleware")


def parse(
    argv: Sequence[str],
    add_own_flags: Callable[[argparse.ArgumentParser], None],
    changed: Mapping[str, tuple[Callable[[str], object], object]],
) -> tuple[Namespace, list[str]]:
    """Parse `[MODEL] [flags]` as `vllm serve` does, plus the flags that `add_own_flags` adds.

    `changed` has the type and the default of each flag of vLLM's that is another one here.

    Returns the namespace, whose `model` is None when none was named, and the flags given that have no effect here.
    Exits with a usage message on bad flags.
    """
    parser = FlexibleArgumentParser(
        prog="app.py", description="Tailrace: one process, one vLLM engine, tokens over Server-Sent Events."
    )
    make_arg_parser(parser)
    add_own_flags(parser)
    untouched = vars(parser.parse_args([]))
    parser.set_defaults(model=None, enforce_eager=None, use_tqdm_on_load=False, long_prefill_token_threshold=None)
    for action in parser._actions:
        if action.dest in changed:
            action.type, action.default = changed[action.dest]
    args = parser.parse_args(list(argv))
    args.model = args.model_tag or args.model
    if args.enforce_eager is None:
        # Compiling takes the start on the CPU from 30 s to 100 s; there, speed is not why one is here.
        args.enforce_eager = current_platform.is_cpu() and args.compilation_config == untouched["compilation_config"]
    if args.model is not None and args.long_prefill_token_threshold is None:
        args.long_prefill_token_threshold = untouched["long_prefill_token_threshold"]
    _check(parser, args, untouched)
    ignored = [name for name in WITHOUT_EFFECT if getattr(args, name) != untouched[name]]
    return args, ["--" + name.replace("_", "-") for name in ignored]


def _check(parser: argparse.ArgumentParser, args: Namespace, untouched: dict[str, object]) -> None:
    for name in REFUSED:
        if getattr(args, name) != untouched[name]:
            parser.error(f"--{name.replace('_', '-')} is not supported by Tailrace")
    try:
        validate_parsed_serve_args(args)
    except (TypeError, ValueError) as error:
        parser.error(str(error))


def name_embedded_model(args: Namespace) -> None:
    """Give the embedded model its name and its modest needs, where the user said nothing else."""
    args.served_model_name = args.served_model_name or [embedded_model.NAME]
    splits_prompts = current_platform.is_cpu() and args.max_num_batched_tokens is None
    if args.long_prefill_token_threshold is None:
        # vLLM refuses more than the context's length.
        fits = not 0 < (args.max_model_len or 0) < EMBEDDED_LONG_PREFILL_TOKENS
        args.long_prefill_token_threshold = EMBEDDED_LONG_PREFILL_TOKENS if splits_prompts and fits else 0
    if splits_prompts:
        # vLLM wants room for a token of every running request.
        args.max_num_batched_tokens = max(EMBEDDED_MAX_NUM_BATCHED_TOKENS, args.max_num_seqs or 0)
    asked_for_memory = "VLLM_CPU_KVCACHE_SPACE" in os.environ or args.kv_cache_memory_bytes is not None
    if current_platform.is_cpu() and not asked_for_memory:
        args.kv_cache_memory_bytes = EMBEDDED_KV_CACHE_BYTES
