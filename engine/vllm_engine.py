"""The real engine: vLLM's `AsyncLLM`, in this process, with its engine core and workers in processes of their own.

Prompts are built, validated and tokenised by vLLM's own serving classes, so that a request means here what it means to
`vllm serve`. This module, `vllm_args` and `vllm_errors` are the only ones that import vLLM.
"""

import asyncio
import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from pydantic import ValidationError
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import resolve_default_chat_template_kwargs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
from vllm.platforms import current_platform
from vllm.renderers.chat_utils import load_chat_template
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.usage.usage_lib import UsageContext
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

from engine import embedded_model
from engine.child_processes import end_child_processes, set_main_of_children, shield_children_from_ctrl_c
from engine.engine_thread import EngineThread
from engine.errors import ContextLength, InvalidRequest, ModelNotFound
from engine.interface import Delta, GenerationRequest
from engine.queue_watch import QueueWatch
from engine.vllm_errors import from_validation, from_vllm

logger = logging.getLogger("tailrace.engine")

# How long the engine core gets to end by itself before it is killed. Its own stop took 4.4 s on the CPU when measured.
STOP_TIMEOUT_S = 10.0

# A request larger than this is prepared in a thread. vLLM validates and renders chats in Python, at up to 0.6 s a MB of
# them: this much is 20 ms at worst.
OFF_LOOP_BYTES = 32 << 10

OpenAIRequest: TypeAlias = CompletionRequest | ChatCompletionRequest


class VllmSource:
    """One request inside `AsyncLLM`, read from its collector, without the generator that `generate` puts around it."""

    def __init__(
        self, llm: AsyncLLM, collector: RequestOutputCollector, num_prompt_tokens: int, queue: QueueWatch
    ) -> None:
        self._llm = llm
        self._queue = queue
        queue.enter(collector.request_id)
        self._collector = collector
        collector.failure = None  # see `_keep_output_before_failure`
        self._num_prompt_tokens = num_prompt_tokens
        self._has_started = False

    @property
    def num_prompt_tokens(self) -> int:
        return self._num_prompt_tokens

    async def next(self) -> Delta:
        try:
            output = self._collector.get_nowait()
            if output is None:
                if self._collector.failure is not None:
                    raise self._collector.failure
                output = await self._collector.get()
        except Exception as error:
            raise from_vllm(error) from error
        completion = output.outputs[0]
        if not self._has_started:
            self._has_started = True
            self._queue.leave(self._collector.request_id)
        return Delta(completion.text, completion.token_ids, completion.finish_reason)

    @property
    def phase(self) -> str:
        return "queued" if self._queue.is_waiting(self._collector.request_id) else "prefill"

    def take_rest(self) -> int:
        self._queue.leave(self._collector.request_id)
        output = self._collector.output
        self._collector.output = None
        return 0 if output is None or isinstance(output, Exception) else len(output.outputs[0].token_ids)

    async def abort(self) -> None:
        """`AsyncLLM.abort` puts a last output into the collector, which wakes a waiting `next`."""
        if not self._llm.errored:
            await self._llm.abort(self._collector.request_id, internal=True)


class VllmEngine:
    """`args` is the namespace of vLLM's own parser; its `model` is filled in when the embedded one is wanted.

    `on_late_tokens` hears of tokens that were made for requests that had been aborted, which nobody else ever sees.
    """

    def __init__(
        self,
        args: Namespace,
        uses_embedded_model: bool = False,
        on_late_tokens: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._args = args
        self._on_late_tokens = on_late_tokens
        self._queue = QueueWatch()
        self._uses_embedded_model = uses_embedded_model
        self._served_names: list[str] = args.served_model_name or [args.model]
        self._thread = EngineThread()
        # Two, so that one giant does not make the next wait, and many do not fight with the event loop.
        self._off_loop = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tailrace-prepare")
        self._starting: asyncio.Future[AsyncLLM] | None = None
        self._llm: AsyncLLM | None = None
        self._renderer: OnlineRenderer | None = None
        self._default_sampling: dict[str, Any] = {}
        self._override_max_tokens: int | None = None
        self._stopped = False

    @property
    def model(self) -> str:
        return self._served_names[0]

    async def start(self) -> None:
        self._starting = self._thread.run(self._load)
        self._llm = await self._starting
        _keep_output_before_failure(self._llm.output_processor)
        _count_late_tokens(self._llm.output_processor, self._on_late_tokens)
        # The first call also starts the task that hears of the engine's death.
        await self._llm.get_supported_tasks()

    def _load(self) -> AsyncLLM:
        if self._uses_embedded_model:
            self._args.model = str(embedded_model.prepare())
        shield_children_from_ctrl_c()
        set_main_of_children(shares_cores=current_platform.is_cpu())
        llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs.from_cli_args(self._args),
            usage_context=UsageContext.OPENAI_API_SERVER,
            stat_loggers=None if self._args.disable_log_stats else [self._queue.stat_logger],
        )
        config = llm.model_config
        self._default_sampling = config.get_diff_sampling_param()
        # The same rule as vLLM's own routes: a generation config that the user chose may cap every request.
        if config.generation_config not in ("auto", "vllm"):
            self._override_max_tokens = self._default_sampling.get("max_tokens")
        else:
            self._override_max_tokens = config.override_generation_config.get("max_new_tokens")
        self._renderer = OnlineRenderer(
            config,
            llm.renderer,
            request_logger=None,
            chat_template=load_chat_template(self._args.chat_template),
            chat_template_content_format=self._args.chat_template_content_format,
            trust_request_chat_template=self._args.trust_request_chat_template,
            default_chat_template_kwargs=resolve_default_chat_template_kwargs(self._args),
        )
        self._renderer.warmup()
        # vLLM's own modules are a million objects that never die. A full collection that looked at them all stopped the
        # event loop for 0.4 s when a large request set one off.
        freeze_gc_heap()
        return llm

    @property
    def _is_traced(self) -> bool:
        assert self._llm is not None
        return self._llm.observability_config.otlp_traces_endpoint is not None

    async def submit(self, request: GenerationRequest, request_id: str) -> VllmSource:
        assert self._llm is not None, "submit before start"
        if request.model is not None and request.model not in self._served_names:
            raise ModelNotFound("this server does not serve that model", param="model")
        try:
            self._llm.check_admission(request_id=request_id)
            self._refuse_endless(request)
            prompt, num_prompt_tokens, params = await self._prepare_beside(request)
            collector = await self._llm.add_request(
                request_id,
                prompt,
                params,
                priority=request.priority or 0,
                trace_headers=request.trace_headers if self._is_traced else None,
            )
        except ValidationError as error:
            raise from_validation(error, request.prompt_field) from error
        except Exception as error:
            raise from_vllm(error, request.prompt_field) from error
        return VllmSource(self._llm, collector, num_prompt_tokens, self._queue)

    def _refuse_endless(self, request: GenerationRequest) -> None:
        """What has more parts than the context has tokens cannot fit, whatever the parts are; do not look at them."""
        assert self._llm is not None
        max_model_len = self._llm.model_config.max_model_len
        if request.messages is not None:
            contents = (message.get("content") for message in request.messages)
            num_parts = len(request.messages) + sum(len(parts) for parts in contents if isinstance(parts, list))
        else:
            num_parts = 0 if isinstance(request.prompt, str) else len(request.prompt or ())
        if num_parts > max_model_len:
            raise ContextLength(
                f"{request.prompt_field} has {num_parts} parts; this model's context has {max_model_len} tokens",
                param=request.prompt_field,
            )

    async def _prepare_beside(self, request: GenerationRequest) -> tuple[Any, int, Any]:
        """`_prepare`, off the event loop where it may take long."""
        if request.num_bytes <= OFF_LOOP_BYTES:
            return await self._prepare(request)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._off_loop, lambda: asyncio.run(self._prepare(request)))

    async def _prepare(self, request: GenerationRequest) -> tuple[Any, int, Any]:
        """The rendered prompt, its length in tokens, and vLLM's sampling parameters."""
        assert self._llm is not None
        openai_request = _openai_request(request, self.model)
        prompt = await self._render(openai_request)
        num_prompt_tokens = len(prompt["prompt_token_ids"])
        max_model_len = self._llm.model_config.max_model_len
        if num_prompt_tokens >= max_model_len:
            raise ContextLength(
                f"the prompt has {num_prompt_tokens} tokens; with the {max_model_len} tokens of this model's context"
                " there is no room for an answer",
                param=request.prompt_field,
            )
        max_tokens = get_max_tokens(
            max_model_len,
            request.sampling.max_tokens,
            num_prompt_tokens,
            self._default_sampling,
            self._override_max_tokens,
        )
        return prompt, num_prompt_tokens, openai_request.to_sampling_params(max_tokens, self._default_sampling)

    async def _render(self, openai_request: OpenAIRequest) -> Any:
        """Template and tokenise, in vLLM's own threads."""
        assert self._renderer is not None
        if isinstance(openai_request, CompletionRequest):
            rendered = await self._renderer.render_completion(openai_request)
        else:
            rendered = await self._renderer.render_chat(openai_request)
            if isinstance(rendered, tuple):
                _, rendered = rendered
        if isinstance(rendered, ErrorResponse):
            raise InvalidRequest(rendered.error.message, param=rendered.error.param)
        return rendered[0]

    def is_dead(self) -> bool:
        return self._llm is not None and bool(self._llm.errored)

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        llm, self._llm = self._llm, None
        if llm is not None:
            await self._thread.run(lambda: llm.shutdown(timeout=STOP_TIMEOUT_S))
        elif self._starting is not None:
            # Nothing can interrupt the load from outside but the end of the processes that it waits for.
            self._starting.cancel()
        self._off_loop.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(end_child_processes)


def _keep_output_before_failure(processor: OutputProcessor) -> None:
    """When the engine dies, vLLM puts the error in the place of output that a slow reader has not taken. Keep both."""
    overwrite = processor.propagate_error

    def propagate_error(error: Exception) -> None:
        late = [state.queue for state in processor.request_states.values() if state.queue.output is not None]
        kept = [(queue, queue.output) for queue in late]
        overwrite(error)
        for queue, output in kept:
            queue.output, queue.failure = output, error

    processor.propagate_error = propagate_error


def _count_late_tokens(processor: OutputProcessor, on_late_tokens: Callable[[int], None]) -> None:
    """vLLM drops output for requests that it no longer knows, and counts it nowhere. Count it first."""
    process_outputs = processor.process_outputs

    def counting(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        known = processor.request_states
        for output in outputs:
            if output.request_id not in known and output.new_token_ids:
                on_late_tokens(len(output.new_token_ids))
        return process_outputs(outputs, *args, **kwargs)

    processor.process_outputs = counting


def _openai_request(request: GenerationRequest, model: str) -> OpenAIRequest:
    """The same request in the words of vLLM's OpenAI layer; absent values stay absent.

    Raises:
        pydantic.ValidationError, vllm.exceptions.VLLMValidationError
    """
    sampling = request.sampling
    fields: dict[str, Any] = {
        name: value
        for name in sampling.__dataclass_fields__
        if (value := getattr(sampling, name)) is not None and name != "stop"
    }
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if request.priority is not None:
        fields["priority"] = request.priority
    fields |= {"model": model, "stream": True}
    if request.messages is not None:
        return ChatCompletionRequest(messages=list(request.messages), **fields)
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt or ())
    return CompletionRequest(prompt=prompt, **fields)
