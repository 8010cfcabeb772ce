"""The floor: vLLM's `AsyncLLM` in a bare loop, in this process, without HTTP.

    python -m bench.raw_engine MODEL FILE --streams 64 --requests 512 [--drives 2]

Writes a JSON list of one `Drive` each into FILE.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

# As long as the client's prompts are behind the chat template.
PROMPT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Drive:
    num_tokens: int
    seconds: float
    cpu_s: float
    ttft_p50_s: float


async def answer(llm: AsyncLLM, request_id: str, num_tokens: int) -> float:
    """Run one request to its end; its TTFT in seconds."""
    chance = random.Random(request_id)
    prompt = {"prompt_token_ids": [chance.randrange(100, 40_000) for _ in range(PROMPT_TOKENS)]}
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    started_s, ttft_s, count = time.perf_counter(), 0.0, 0
    async for output in llm.generate(prompt, params, request_id):
        if not count:
            ttft_s = time.perf_counter() - started_s
        count += len(output.outputs[0].token_ids)
    assert count == num_tokens
    return ttft_s


async def drive(llm: AsyncLLM, name: str, num_streams: int, num_requests: int, num_tokens: int) -> Drive:
    waiting = [f"{name}-{index}" for index in range(num_requests)]
    ttfts_s: list[float] = []

    async def stream() -> None:
        while waiting:
            ttfts_s.append(await answer(llm, waiting.pop(), num_tokens))

    started_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(stream() for _ in range(num_streams)))
    seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    return Drive(num_requests * num_tokens, seconds, cpu_s, statistics.median(ttfts_s))


async def run(args: argparse.Namespace) -> None:
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(model=args.model, max_model_len=2048, enforce_eager=True, max_num_seqs=256)
    )
    try:
        await drive(llm, "warm", 8, 16, args.tokens)
        drives = [
            await drive(llm, f"drive-{number}", args.streams, args.requests, args.tokens)
            for number in range(args.drives)
        ]
        args.file.write_text(json.dumps([asdict(one) for one in drives]))
    finally:
        llm.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.raw_engine")
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    for name, default in (("streams", 64), ("requests", 512), ("tokens", 128), ("drives", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    uvloop.run(run(parser.parse_args()))
