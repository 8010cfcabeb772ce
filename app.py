"""Tailrace: one ASGI process that owns a vLLM engine and hands its tokens to clients over Server-Sent Events.

    python app.py [MODEL] [flags of vllm serve] [Tailrace's own flags]

The composition root: settings → engine → routes → ASGI application → uvicorn.
"""

import logging
import sys
import time
import urllib.parse

import uvloop
from prometheus_client import REGISTRY
from starlette.applications import Starlette

import settings as settings_module
from engine import quiet
from engine.interface import Engine
from engine.journal import Journal, MemoryJournal
from engine.lifecycle import Lifecycle
from engine.scripted import DEFAULT_TEXT, Script, ScriptedEngine, split_words
from engine.supervisor import Supervisor
from metrics.instruments import Instruments
from routes import server
from routes.application import HttpSettings, build_application
from settings import Settings

logger = logging.getLogger("tailrace")


def main() -> int:
    """The exit code: 0 after a signal, 1 after the engine's death, 2 for a bad command line."""
    quiet.hold_back()
    settings = settings_module.load(sys.argv[1:])
    args = settings.args
    quiet.set_up_logging(args.log_format)
    instruments = Instruments(REGISTRY)
    lifecycle = Lifecycle(on_change=instruments.set_state)

    async def run() -> int:
        supervisor = Supervisor(build_engine(settings, instruments), lifecycle)
        journal = build_journal(settings, instruments)
        config = server.config_for(
            build_routes(settings, supervisor, journal, instruments),
            host=args.host or "0.0.0.0",
            port=args.port,
            uds=args.uds,
            root_path=args.root_path or "",
            log_level=args.uvicorn_log_level if args.uvicorn_log_level != "info" else "warning",
            ssl_keyfile=args.ssl_keyfile,
            ssl_certfile=args.ssl_certfile,
            ssl_ca_certs=args.ssl_ca_certs,
        )
        sock = server.bind(config)
        logger.info("loading %s; the port is open already", supervisor.model)
        await journal.start()
        try:
            return await server.serve(
                config,
                sock,
                supervisor,
                args.shutdown_timeout,
                hands_over=args.drain == "handover" and journal.is_shared,
                on_ready=lambda: announce(settings, supervisor.model),
                loop_lag=instruments.loop_lag,
            )
        finally:
            await journal.close()

    return int(uvloop.run(run()))


def build_engine(settings: Settings, instruments: Instruments) -> Engine:
    args = settings.args
    if not settings.is_scripted:
        from engine.vllm.engine import VllmEngine  # imports vLLM

        return VllmEngine(args, settings.uses_embedded_model, instruments.discarded.labels("after_abort").inc)
    tokens = args.scripted_text or split_words(DEFAULT_TEXT)
    script = Script(tokens, args.scripted_ttft_ms / 1000, args.scripted_itl_ms / 1000)
    names = args.served_model_name or ["scripted"]
    return ScriptedEngine(script, names[0], on_tokens=instruments.scripted_tokens.inc)


def build_journal(settings: Settings, instruments: Instruments) -> Journal:
    args = settings.args
    if args.journal is None:
        return MemoryJournal(time.monotonic, args.resume_window, on_unresumed=instruments.unresumable.inc)
    from engine.journal.redis_journal import RedisJournal  # imports redis

    return RedisJournal(
        args.journal,
        args.resume_window,
        on_available=instruments.journal_available.set,
        on_unresumed=instruments.unresumable.inc,
    )


def build_routes(settings: Settings, supervisor: Supervisor, journal: Journal, instruments: Instruments) -> Starlette:
    args = settings.args
    http = HttpSettings(
        keep_alive_s=args.sse_keep_alive_interval,
        stall_timeout_s=args.stall_timeout,
        min_event_interval_s=args.min_event_interval_ms / 1000,
        max_body_bytes=args.max_body_bytes,
        api_keys=settings.api_keys,
        access_log=not args.disable_uvicorn_access_log,
        unlogged_paths=frozenset((args.disable_access_log_for_endpoints or "").split(",")),
        allowed_origins=args.allowed_origins,
        allowed_methods=args.allowed_methods,
        allowed_headers=args.allowed_headers,
        allow_credentials=args.allow_credentials,
    )
    return build_application(supervisor, journal, instruments, http)


def announce(settings: Settings, model: str) -> None:
    """Ready: the address, and a line to try."""
    args = settings.args
    scheme = "https" if args.ssl_certfile else "http"
    host = "localhost" if args.host in (None, "0.0.0.0", "::") else args.host
    address = f"{scheme}://{host}:{args.port}{args.root_path or ''}"
    key = " -H 'Authorization: Bearer KEY'" if settings.api_keys else ""
    question = urllib.parse.urlencode({"message": "Why is the sky blue?", "max_tokens": 60})
    logger.info("%s is ready on %s", model, args.uds or address)
    logger.info("try: curl -N%s '%s/v1/stream?%s'", key, address, question)


if __name__ == "__main__":
    sys.exit(main())
