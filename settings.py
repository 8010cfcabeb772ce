"""Everything the command line and the environment decide, read once at the start.

vLLM's flags come from vLLM's own parser; the flags declared here are Tailrace's. Each of those can also be set by an
environment variable: `--stall-timeout` by `TAILRACE_STALL_TIMEOUT`; the command line wins.
"""

import argparse
import json
import math
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.scripted import load_tokens


def _number(read: Callable[[str], float], least: float, what: str) -> Callable[[str], float]:
    """A reader of finite numbers from `least` up, whose complaint is for people."""

    def parse(text: str) -> float:
        try:
            value = read(text)
            is_good = math.isfinite(value) and value >= least
        except (ValueError, OverflowError):
            is_good = False
        if not is_good:
            raise argparse.ArgumentTypeError(f"must be {what} of at least {least:g}, got {text}")
        return value

    return parse


POSITIVE_INT = _number(int, 1, "an integer")
NON_NEGATIVE_INT = _number(int, 0, "an integer")
NON_NEGATIVE = _number(float, 0, "a finite number")
POSITIVE = _number(float, 0.001, "a finite number")


def _script(text: str) -> list[str]:
    try:
        return load_tokens(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def _journal(text: str) -> str:
    from engine.journal.address import connect_to  # imports redis

    try:
        connect_to(text, timeout_s=1)  # which it does when it is first used
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    type: Callable[[str], Any]
    default: object
    help: str
    choices: tuple[str, ...] | None = None

    @property
    def variable(self) -> str:
        return "TAILRACE_" + self.name.upper().replace("-", "_")

    @property
    def dest(self) -> str:
        return self.name.replace("-", "_")


OWN_FLAGS = (
    Flag("engine", str, "vllm", "What makes the tokens.", ("vllm", "scripted")),
    Flag("stall-timeout", NON_NEGATIVE, 30.0, "Seconds that a reader may take no byte; 0 lets it wait for ever."),
    Flag("resume-window", POSITIVE, 120.0, "Seconds for which a cut or ended stream can be come back to."),
    Flag("journal", _journal, None, "redis://… or valkey://…, where pods share streams; else each has its own."),
    Flag(
        "drain",
        str,
        "wait",
        "What a shutdown does with streams that another pod can go on with: wait for them, or hand them over.",
        ("wait", "handover"),
    ),
    Flag(
        "min-event-interval-ms",
        NON_NEGATIVE,
        0.0,
        "The least time between two events with text of one stream; the first is never held back.",
    ),
    Flag("max-body-bytes", POSITIVE_INT, 8 << 20, "The largest request body, in bytes."),
    Flag("log-format", str, "text", "How the log is written.", ("text", "json")),
    Flag("scripted-ttft-ms", NON_NEGATIVE, 50.0, "With --engine scripted: time to the first token."),
    Flag("scripted-itl-ms", NON_NEGATIVE, 20.0, "With --engine scripted: time between tokens."),
    Flag("scripted-text", _script, None, "With --engine scripted: what it says, a text or a JSON list of tokens."),
)

# vLLM's flags whose defaults differ here.
CHANGED_FLAGS = (
    Flag("shutdown-timeout", NON_NEGATIVE_INT, 25, "Seconds that streams in flight may run on after SIGTERM."),
    Flag(
        "sse-keep-alive-interval",
        NON_NEGATIVE,
        15.0,
        "Seconds without bytes after which a comment goes out; 0 turns it off.",
    ),
)

# vLLM's flags that also mean something without vLLM: all that `--engine scripted` knows, so that it need not import it.
SERVER_FLAGS = (
    Flag("host", str, None, "Host name."),
    Flag("port", int, 8000, "Port number."),
    Flag("uds", str, None, "Unix domain socket path; host and port are ignored then."),
    Flag("root-path", str, None, "Path prefix under which a proxy shows this server."),
    Flag("uvicorn-log-level", str, "info", "Log level for uvicorn."),
    Flag("ssl-keyfile", str, None, "SSL key file."),
    Flag("ssl-certfile", str, None, "SSL certificate file."),
    Flag("ssl-ca-certs", str, None, "CA certificates file."),
    Flag("disable-access-log-for-endpoints", str, None, "Paths, comma-separated, that the access log leaves out."),
    *CHANGED_FLAGS,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """`args` holds vLLM's flags (the few of `SERVER_FLAGS` with the scripted engine) and `OWN_FLAGS`."""

    args: Namespace
    uses_embedded_model: bool

    @property
    def is_scripted(self) -> bool:
        return bool(self.args.engine == "scripted")

    @property
    def api_keys(self) -> tuple[str, ...]:
        keys = self.args.api_key or [os.environ.get("VLLM_API_KEY", "")]
        return tuple(key for key in keys if key)


def load(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Parse `argv`; exits with a usage message on bad flags or variables."""
    first_look = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add(first_look, OWN_FLAGS[:1], environ)
    if first_look.parse_known_args(argv)[0].engine == "scripted":
        return Settings(_parse_scripted(argv, environ), uses_embedded_model=False)

    try:
        from engine.vllm import args as vllm_args  # takes 6 s, which the scripted engine does without
    except ImportError as error:
        sys.exit(f"error: {error}")

    changed = {flag.dest: (flag.type, _default(flag, environ)) for flag in CHANGED_FLAGS}
    args, ignored = vllm_args.parse(argv, lambda parser: _add(parser, OWN_FLAGS, environ), changed)
    uses_embedded_model = args.model is None
    if uses_embedded_model:
        vllm_args.name_embedded_model(args)
    if ignored:
        print(f"warning: these flags of vllm serve have no effect here: {' '.join(ignored)}", file=sys.stderr)
    return Settings(args, uses_embedded_model)


def _parse_scripted(argv: Sequence[str], environ: Mapping[str, str]) -> Namespace:
    """The scripted engine's command line: flags that are only vLLM's are named and ignored."""
    parser = argparse.ArgumentParser(prog="app.py --engine scripted", allow_abbrev=False)
    _add(parser, OWN_FLAGS + SERVER_FLAGS, environ)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--api-key", nargs="*")
    parser.add_argument("--disable-uvicorn-access-log", action="store_true")
    parser.add_argument("--allow-credentials", action="store_true")
    for name, default in (("origins", "[]"), ("methods", '["*"]'), ("headers", '["*"]')):
        parser.add_argument(f"--allowed-{name}", type=json.loads, default=json.loads(default))
    args, rest = parser.parse_known_args(argv)
    if rest:
        print(f"warning: the scripted engine takes no notice of: {' '.join(rest)}", file=sys.stderr)
    return args


def _add(parser: argparse.ArgumentParser, flags: Sequence[Flag], environ: Mapping[str, str]) -> None:
    group = parser.add_argument_group("Tailrace")
    for flag in flags:
        group.add_argument(
            f"--{flag.name}",
            type=flag.type,
            default=_default(flag, environ),
            choices=flag.choices,
            help=f"{flag.help} Default: {flag.default}. Also {flag.variable}.",
        )


def _default(flag: Flag, environ: Mapping[str, str]) -> object:
    """The variable's value where it is set, else the flag's own default. Exits when the variable cannot be read."""
    text = environ.get(flag.variable)
    if text is None:
        return flag.default
    try:
        value = flag.type(text)
    except (ValueError, argparse.ArgumentTypeError) as error:
        sys.exit(f"{flag.variable}: {error}")
    if flag.choices and value not in flag.choices:
        sys.exit(f"{flag.variable}: must be one of {', '.join(flag.choices)}")
    return value
