"""`python -m engine "a prompt"`: the engine without a server.

Prints the tokens as they are made; then, on stderr, the finish reason, TTFT and TPOT. Ctrl-C aborts the request and
ends the engine; the exit code is 130 then. All of vLLM's flags are taken after the prompt.
"""

import asyncio
import signal
import sys
import time

import uvloop

import settings as settings_module
from engine import quiet
from engine.errors import TailraceError
from engine.interface import Engine, GenerationRequest
from engine.lifecycle import Lifecycle
from engine.supervisor import Supervisor
from metrics.timing import StreamTiming

INTERRUPTED = 130


def main(argv: list[str]) -> int:
    if not argv or argv[0].startswith("-"):
        sys.exit('usage: python -m engine "a prompt" [flags of vllm serve]')
    quiet.hold_back()
    settings = settings_module.load(argv[1:])
    quiet.set_up_logging()
    if settings.is_scripted:
        sys.exit("python -m engine runs a model; for the scripted engine use app.py")
    from engine.vllm.engine import VllmEngine  # imports vLLM

    return int(uvloop.run(run(VllmEngine(settings.args, settings.uses_embedded_model), argv[0])))


async def run(engine: Engine, prompt: str) -> int:
    """Answer `prompt` on stdout; the exit code."""
    work = asyncio.create_task(_answer(engine, prompt))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        await work
    except TailraceError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("\naborted", file=sys.stderr)
        return INTERRUPTED
    finally:
        await engine.stop()
    return 0


async def _answer(engine: Engine, prompt: str) -> None:
    supervisor = Supervisor(engine, Lifecycle())
    await supervisor.start()
    timing = StreamTiming(time.perf_counter())
    async with await supervisor.admit(GenerationRequest(prompt=prompt)) as generation:
        async for delta in generation:
            if delta.text:
                print(delta.text, end="", flush=True)
                timing.on_write(time.perf_counter(), generation.num_output_tokens)
    ttft_ms, tpot_ms = ((seconds or 0.0) * 1000 for seconds in (timing.ttft_s, timing.tpot_s))
    summary = f"{generation.finish_reason}, {generation.num_output_tokens} tokens"
    print(f"\n[{summary}, TTFT {ttft_ms:.1f} ms, TPOT {tpot_ms:.1f} ms]", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
