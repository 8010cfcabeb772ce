"""The real engine: vLLM's `AsyncLLM`, in this process, with its engine core and workers in processes of their own.

Prompts are built, validated and tokenised by vLLM's own serving classes, so that a request means here what it means to
`vllm serve`.
"""

import asyncio
import gc
import itertools
import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from vllm import envs
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
from vllm.inputs import tokens_input
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from engine import embedded_model
from engine.child_processes import StartedProcesses, set_main_of_children, shield_children_from_ctrl_c
from engine.engine_thread import EngineThread
from engine.errors import ContextLength, StreamGone
from engine.interface import AnyRequest, GenerationRequest, PreparedRequest, Terms, TokenSource
from engine.serving import Serving
from engine.vllm.continuing import Cut, EndedSource, count_on, going_on, is_continuable, let_requests_go_on, replay
from engine.vllm.cores import needs_no_worker, without_worker
from engine.vllm.errors import from_validation, from_vllm
from engine.vllm.memory import tcmalloc_preloaded
from engine.vllm.off_loop import OffLoop
from engine.vllm.queue_watch import QueueWatch
from engine.vllm.serving import OpenAIRequest, VllmServing, refuse_endless
from engine.vllm.source import ReadReasoning, StepFeed, VllmSource, says_only_text
from engine.vllm.step_stats import StepStats

logger = logging.getLogger("tailrace.engine")

# How long the engine core gets to end by itself before it is killed. Its own stop took 4.4 s on the CPU when measured.
STOP_TIMEOUT_S = 10.0

# How many more objects are made than freed before the garbage collector looks at the youngest, and how often it does
# that before it looks at their elders. With Python's 700 it looks, in vain, at the parts of requests that still run.
GC_THRESHOLDS = (10_000, 20, 20)


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
        self._processes = StartedProcesses()
        self._off_loop = OffLoop()
        self._starting: asyncio.Future[AsyncLLM] | None = None
        self._llm: AsyncLLM | None = None
        self._feed: StepFeed | None = None
        self._serving: VllmServing | None = None
        self._stopped = False
        self._lost_one = False

    @property
    def model(self) -> str:
        return self._served_names[0]

    @property
    def serving(self) -> Serving:
        assert self._serving is not None, "serving before start"
        return self._serving

    async def start(self) -> None:
        self._starting = self._thread.run(self._load)
        self._llm = await self._starting
        steps = self._llm.engine_core.outputs_queue
        self._feed = StepFeed(self._llm.output_processor, lambda: not steps.empty(), self._on_late_tokens)
        let_requests_go_on(self._llm.output_processor)
        # Its first question also starts the task that hears of the engine's death.
        self._serving = await VllmServing.create(self._llm, self._args, self._off_loop)
        envs.enable_envs_cache()  # which are parsed anew each time, and vLLM asks for one on every token
        # Which transformers looks up by its name each time, in 35 us, and vLLM asks for on every request.
        end_of_sequence_id = self._llm.renderer.get_eos_token_id()
        self._llm.renderer.get_eos_token_id = lambda: end_of_sequence_id
        # vLLM's own modules are a million objects that never die. A full collection that looked at them all stopped the
        # event loop for 0.4 s when a large request set one off.
        freeze_gc_heap()
        gc.set_threshold(*GC_THRESHOLDS)

    def _load(self) -> AsyncLLM:
        if self._uses_embedded_model:
            self._args.model = str(embedded_model.prepare())
        shield_children_from_ctrl_c()
        on_cpu = current_platform.is_cpu()
        set_main_of_children(on_cpu)
        with self._processes, ExitStack() as stack:
            config = AsyncEngineArgs.from_cli_args(self._args).create_engine_config(UsageContext.OPENAI_API_SERVER)
            if on_cpu:
                stack.enter_context(tcmalloc_preloaded())
                if needs_no_worker(config, self._args.distributed_executor_backend):
                    stack.enter_context(without_worker(config))
            return AsyncLLM.from_vllm_config(
                config,
                usage_context=UsageContext.OPENAI_API_SERVER,
                stat_loggers=None if self._args.disable_log_stats else [self._queue.stat_logger, StepStats],
                enable_log_requests=self._args.enable_log_requests,
                disable_log_stats=self._args.disable_log_stats,
            )

    async def submit(self, request: AnyRequest, request_id: str) -> TokenSource:
        assert self._llm is not None, "submit before start"
        if isinstance(request, PreparedRequest):
            return await self._add(_Ready(request, _terms(request)), request_id, "prompt")
        try:
            self._llm.check_admission(request_id=request_id)
        except Exception as error:
            raise from_vllm(error) from error
        return await self._add(await self._prepare_beside(request), request_id, request.prompt_field)

    async def check(self, request: GenerationRequest) -> None:
        ready = await self._prepare_beside(request)
        try:
            await self._process(ready.request)
        except Exception as error:
            raise from_vllm(error, request.prompt_field) from error

    async def _process(self, request: PreparedRequest) -> Any:
        """What vLLM would send to the engine for `request`."""
        assert self._llm is not None
        tasks = await self._llm.get_supported_tasks()
        return self._llm.input_processor.process_inputs("check", request.prompt, request.params, supported_tasks=tasks)

    async def _prepare_beside(self, request: GenerationRequest) -> "_Ready":
        """`_prepare`, off the event loop where it may take long.

        Raises:
            TailraceError
        """
        assert self._llm is not None
        # A token made before takes less to replay than four bytes of a prompt take to tokenise.
        num_bytes = request.num_bytes + 4 * sum(map(len, request.made_before))
        try:
            refuse_endless(
                request.prompt_field, request.messages or request.prompt, self._llm.model_config.max_model_len
            )
            return await self._off_loop.run(num_bytes, lambda: self._prepare(request))
        except ValidationError as error:
            raise from_validation(error, request.prompt_field) from error
        except Exception as error:
            raise from_vllm(error, request.prompt_field) from error

    async def _add(self, ready: "_Ready", request_id: str, prompt_field: str) -> TokenSource:
        assert self._llm is not None
        assert self._feed is not None
        request, cut = ready.request, ready.cut
        if cut is not None and cut.finish_reason is not None:
            return EndedSource(ready.terms, cut.finish_reason)
        options = dict(request.options)
        if self._llm.observability_config.otlp_traces_endpoint is None:
            options.pop("trace_headers", None)  # vLLM would complain
        try:
            with going_on(cut):
                collector = await self._llm.add_request(request_id, request.prompt, request.params, **options)
        except Exception as error:
            raise from_vllm(error, prompt_field) from error
        source = VllmSource(self._llm, collector, ready.terms, self._queue, self._feed, ready.read)
        state = self._llm.output_processor.request_states.get(collector.request_id)
        if not request.needs_raw and state is not None and says_only_text(state, request.params):
            source.take_text_from(state)
        return source

    async def _prepare(self, request: GenerationRequest) -> "_Ready":
        """Render, tokenise, check the length; and how to tell reasoning in the output, where the model does that."""
        serving = self._serving
        assert self._llm is not None
        assert serving is not None
        openai_request = _openai_request(request, request.model or self.model)
        lora_request = serving.adapter_of(openai_request)
        if request.is_chat and request.messages is None:
            prompt = tokens_input(list(request.prompt or ()))  # rendered before
        else:
            prompt = await serving.render(openai_request)
        num_prompt_tokens = len(prompt["prompt_token_ids"])
        max_model_len = self._llm.model_config.max_model_len
        if num_prompt_tokens >= max_model_len:
            raise ContextLength(
                f"the prompt has {num_prompt_tokens} tokens; with the {max_model_len} tokens of this model's context"
                " there is no room for an answer",
                param=request.prompt_field,
            )
        chat = serving.chat
        max_tokens = get_max_tokens(
            max_model_len,
            request.sampling.max_tokens,
            num_prompt_tokens,
            chat.default_sampling_params,
            chat.override_max_tokens,
        )
        params = openai_request.to_sampling_params(max_tokens, chat.default_sampling_params)
        options = {
            "priority": request.priority or 0,
            "trace_headers": request.trace_headers,
            "lora_request": lora_request,
        }
        read = None
        if isinstance(openai_request, ChatCompletionRequest):
            reasoning_options, read = serving.reasoning_of(openai_request, prompt["prompt_token_ids"])
            options |= reasoning_options
        prepared = PreparedRequest(prompt, params, options, needs_raw=False)
        if not request.made_before:
            return _Ready(prepared, _terms(prepared), read)
        return await self._go_on(prepared, read, request.made_before)

    async def _go_on(
        self, before: PreparedRequest, read: ReadReasoning | None, pieces: Sequence[Sequence[int]]
    ) -> "_Ready":
        """The request that goes on after `pieces`, which are output of the request `before`."""
        assert self._llm is not None
        terms = _terms(before)
        if not terms.can_continue:
            raise StreamGone("this stream cannot be continued")
        cut = replay(self._llm.output_processor.tokenizer, await self._process(before), pieces, read)
        terms = replace(terms, num_tokens_before=cut.num_tokens)
        if cut.finish_reason is not None:
            return _Ready(before, terms, read, cut)
        prompt = tokens_input(list(itertools.chain(terms.prompt_token_ids, *pieces)))
        params = count_on(before.params, cut.num_tokens, self._llm.vllm_config.use_v2_model_runner)
        return _Ready(replace(before, prompt=prompt, params=params), terms, read, cut)

    def is_dead(self) -> bool:
        if self._llm is None or self._lost_one:
            return self._lost_one
        if not self._llm.errored and _has_lost_an_engine(self._llm):
            # Of several engines, vLLM first ends those that are left, for seconds, and only then tells of it.
            self._lost_one = True
            self._llm.output_processor.propagate_error(EngineDeadError())
        return self._lost_one or bool(self._llm.errored)

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
        self._off_loop.stop()
        await asyncio.to_thread(self._processes.end)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A request as vLLM gets it, how to tell reasoning in its output, and where it goes on, if it does."""

    request: PreparedRequest
    terms: Terms
    read: ReadReasoning | None = None
    cut: Cut | None = None


def _terms(request: PreparedRequest) -> Terms:
    token_ids = request.prompt.get("prompt_token_ids") or ()
    max_tokens = request.params.max_tokens or 0
    return Terms(len(token_ids), token_ids, max_tokens, can_continue=is_continuable(request.prompt, request.params))


def _has_lost_an_engine(llm: AsyncLLM) -> bool:
    """Whether one of the engine's processes ended; those that Ray runs tell of it by themselves."""
    finished = getattr(llm.engine_core.resources.engine_manager, "finished_procs", None)
    return finished is not None and bool(finished())


def _openai_request(request: GenerationRequest, model: str) -> OpenAIRequest:
    """The same request in the words of vLLM's OpenAI layer; absent values stay absent.

    Of a chat whose prompt is rendered already, it has all but the messages.

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
    if request.is_chat:
        return ChatCompletionRequest(messages=[{"role": "user", "content": ""}], **fields)
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt or ())
    return CompletionRequest(prompt=prompt, **fields)
