"""The runner's Cog interface: prompt in, text streamed out, with the original's inputs and limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import partial
from typing import Any

import cog
from cog import BaseRunner, ConcatenateIterator, Input

from errors.chat import PromptOrMessages
from errors.coded_error import CodedError, cut_text
from errors.requests import InvalidArgumentMaxTokens, InvalidArgumentMinTokens, InvalidInput
from runner.cog_server.coglet import check_coglet, prediction_id, prepare_run, print_lines, shown_error
from runner.cog_server.loop_link import LoopCalls, WakeUps
from runner.cog_server.prediction_dirs import PredictionDirs
from runner.cog_server.streaming import PredictionStream, hook_coglet
from runner.cog_server.worker_link import WorkerLink
from runner.engines.protocol.messages import SEEDS, Guide, Sampling
from runner.engines.protocol.outlet import Outlet
from runner.generation.generation import Generation
from runner.generation.request import GenerationRequest, random_seed
from runner.generation.stop_sequences import StopSequences
from runner.observability.logs import log_in
from runner.service import Service
from runner.settings.prompt_template import begins_turn_after, format_prompt
from runner.settings.settings import Settings, load_settings
from runner.supervision.tuning import collect_rarely, freeze_loaded_objects, schedule_as_batch

DEFAULT_MAX_TOKENS = 512
_DEFAULTS: Mapping[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.95,
    "top_k": 0,
    "length_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling parameters where the input has none or null."""
_MAX_INT32 = (1 << 31) - 1


class Runner(BaseRunner):  # type: ignore[misc]  # cog has no types
    """Runner of one engine through Triton."""

    _settings: Settings
    _service: Service
    _loop_calls: LoopCalls
    _wake_ups: WakeUps
    _prediction_dirs: PredictionDirs

    async def setup(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop_calls, self._wake_ups = LoopCalls(loop), WakeUps(loop)
        prepare_run(Runner.run)
        try:
            self._settings = load_settings()
            check_coglet(log_in(self._settings.log_format))
            hook_coglet()
            self._service = Service(self._settings)
            self._prediction_dirs = PredictionDirs()
            link = WorkerLink(self._service, self._prediction_dirs, loop)
            await self._service.open()
        except CodedError as exc:
            raise shown_error(exc) from None
        schedule_as_batch()
        link.ready(self._settings.stop_grace_s)
        collect_rarely()
        freeze_loaded_objects()

    async def healthcheck(self) -> bool:
        return await self._service.is_healthy()

    @cog.streaming  # type: ignore[untyped-decorator]
    @cog.concurrent(max=64)  # type: ignore[untyped-decorator]
    async def run(
        self,
        prompt: str | None = Input(
            description="Prompt to send to the model. Either this or messages.", default=None
        ),
        system_prompt: str | None = Input(
            description="System prompt, put into the prompt template. Default: the server's SYSTEM_PROMPT.",
            default=None,
        ),
        max_tokens: int | None = Input(
            description="Maximum number of tokens to generate.", ge=1, default=DEFAULT_MAX_TOKENS
        ),
        min_tokens: int | None = Input(
            description="Minimum number of tokens to generate; -1 to disable.", ge=-1, default=None
        ),
        temperature: float | None = Input(
            description="Randomness of the output: 0 is greedy, above 1 more random.",
            ge=0,
            le=5,
            default=_DEFAULTS["temperature"],
        ),
        top_p: float | None = Input(
            description="Sample from the most likely tokens that together have this probability.",
            ge=0,
            le=1,
            default=_DEFAULTS["top_p"],
        ),
        top_k: int | None = Input(
            description="Number of most likely tokens to sample from (0 or -1: no limit).",
            ge=-1,
            default=_DEFAULTS["top_k"],
        ),
        stop_sequences: str | None = Input(
            description="Comma-separated texts at which to stop. Default: the server's STOP_SEQUENCES.",
            default=None,
        ),
        length_penalty: float | None = Input(
            description="Exponential penalty on the length, for beam search.",
            ge=0,
            le=5,
            default=_DEFAULTS["length_penalty"],
        ),
        presence_penalty: float | None = Input(
            description="Subtracted from the score of each token that was generated before.",
            default=_DEFAULTS["presence_penalty"],
        ),
        frequency_penalty: float | None = Input(
            description="Subtracted from a token's score for each time it was generated before.",
            default=_DEFAULTS["frequency_penalty"],
        ),
        repetition_penalty: float | None = Input(
            description="Divides the score of tokens in prompt and output; above 1 discourages repetition.",
            ge=0.01,
            default=_DEFAULTS["repetition_penalty"],
        ),
        seed: int | None = Input(description="Random seed; leave empty for a random one.", default=None),
        prompt_template: str | None = Input(
            description="Template for the prompt with the fields {prompt} and {system_prompt}. "
            "Default: PROMPT_TEMPLATE of the server.",
            min_length=1,
            default=None,
        ),
        json_schema: str | None = Input(
            description="JSON schema, as text, that the output follows, unless max_tokens cuts it short. "
            '{"type": "object"} is any object.',
            min_length=1,
            default=None,
        ),
        regex: str | None = Input(
            description="Regular expression that the whole output matches.", min_length=1, default=None
        ),
        lora_name: str | None = Input(
            description="Name of a LoRA adapter that the engine carries. Default: none.", default=None
        ),
        cache_salt: str | None = Input(
            description="Computed prefixes of prompts are shared only by requests with the same text here.",
            default=None,
        ),
        priority: int | None = Input(
            description="Requests with lower values begin earlier. Default: 0.",
            ge=-_MAX_INT32,
            le=_MAX_INT32,
            default=None,
        ),
        max_queue_ms: int | None = Input(
            description="Milliseconds until the first token, after which the request fails. "
            "Default: MAX_QUEUE_MS.",
            ge=1,
            le=_MAX_INT32,
            default=None,
        ),
        log_performance_metrics: bool | None = Input(description="Log performance metrics.", default=False),
        max_new_tokens: int | None = Input(
            description="Older name of max_tokens.", ge=1, default=None, deprecated=True
        ),
        min_new_tokens: int | None = Input(
            description="Older name of min_tokens.", ge=-1, default=None, deprecated=True
        ),
        messages: str | None = Input(
            description="Chat instead of a prompt, for the model's chat template, as JSON: "
            '[{"role": "user", "content": "..."}, ...].',
            default=None,
        ),
    ) -> ConcatenateIterator[str]:
        settings, arrived_s = self._settings, time.perf_counter()
        request_id = prediction_id()
        try:
            if system_prompt is None:
                system_prompt = settings.system_prompt
            if stop_sequences is None:
                stop_sequences = settings.stop_sequences
            begins_turn = bool(messages)
            if messages:
                _check_alone(prompt, prompt_template)
                text = self._service.model.chat.render(messages, system_prompt=system_prompt)
            elif prompt is None:
                raise PromptOrMessages(given="as there is neither; Cog drops inputs of other names")
            else:
                template = prompt_template or settings.prompt_template
                begins_turn = begins_turn_after(template)
                text = format_prompt(
                    template,
                    prompt=prompt,
                    system_prompt=system_prompt,
                    max_bytes=self._service.model.max_prompt_bytes,
                )
            request = GenerationRequest(
                prompt=text,
                adds_special_tokens=not messages,
                begins_turn=begins_turn,
                # NOTE: in JSON Schema 2.0 is an integer; Cog passes it as a float.
                max_tokens=int(_max_tokens(max_tokens, max_new_tokens)),
                min_tokens=max(int(_min_tokens(min_tokens, min_new_tokens)), 0),
                stop_sequences=StopSequences.split(stop_sequences or ""),
                sampling=Sampling(
                    **_parameters(
                        temperature=temperature,
                        top_k=None if top_k is None else int(top_k),
                        top_p=top_p,
                        length_penalty=length_penalty,
                        presence_penalty=presence_penalty,
                        frequency_penalty=frequency_penalty,
                        repetition_penalty=repetition_penalty,
                    ),
                    seed=random_seed() if seed is None else int(seed) % SEEDS,
                ),
                guide=_guide(json_schema, regex),
                lora_name=lora_name or None,
                cache_salt=cache_salt or None,
                priority=None if priority is None else int(priority),
                max_queue_ms=settings.max_queue_ms if max_queue_ms is None else int(max_queue_ms),
            )
        except CodedError as exc:
            self._loop_calls.post(partial(self._service.meter.ended, "failed", exc.code))
            self._prediction_dirs.ended(request_id)
            raise shown_error(exc) from None
        logs_performance = bool(log_performance_metrics) or settings.log_performance_metrics
        on_end = partial(self._prediction_dirs.ended, request_id)
        stream = PredictionStream(self._loop_calls, self._wake_ups, on_end)
        return stream.chunks(self._stream(request, logs_performance, arrived_s, request_id, stream.outlet))

    async def _stream(
        self,
        request: GenerationRequest,
        logs_performance: bool,
        arrived_s: float,
        request_id: str,
        outlet: Outlet[str],
    ) -> AsyncGenerator[str, None]:
        print_lines(_logged(request))
        try:
            generation = self._service.generate(
                request, measures_phases=logs_performance, arrived_s=arrived_s, request_id=request_id
            )
        except CodedError as exc:
            self._service.meter.ended("failed", exc.code)
            raise shown_error(exc) from None
        try:
            async for text in generation.text(outlet):
                yield text
        except CodedError as exc:
            raise shown_error(exc) from None
        finally:
            self._record(generation, logs_performance)

    def _record(self, generation: Generation, logs_performance: bool) -> None:
        """Record the metrics and, if wanted, the lines that load tests read."""
        record = self.scope.record_metric
        record("input_token_count", generation.input_token_count)
        if generation.cached_token_count is not None:
            record("cached_token_count", generation.cached_token_count)
        record("output_token_count", generation.output_token_count)
        if generation.finish_reason is not None:
            record("finish_reason", generation.finish_reason)
        if not logs_performance:
            return  # NOTE: each record is a message to Cog's server and costs as much as a hundred tokens.
        for phase, seconds in generation.budget.phases().items():
            record(f"{phase}_time", seconds)
        if generation.finish_reason is not None:
            record("tokens_per_second", generation.tokens_per_second)
        first_token_s = generation.time_to_first_token_s
        if first_token_s is not None:
            record("time_to_first_token", first_token_s)
            print(f"Tokens processed: {generation.output_token_count}")
            print(f"Serverside tokens per second: {generation.tokens_per_second:.2f}")
            print(f"Serverside execution time: {generation.duration_s:.2f} seconds")
            print(f"Serverside time to first token: {first_token_s:.2f} seconds")


def _logged(request: GenerationRequest) -> Iterator[str]:
    yield f"Random seed used: {request.sampling.seed}"
    if request.sampling.is_greedy:
        yield "Note: greedy decoding ignores the random seed"
    yield f"Formatted prompt: {cut_text(str(request.prompt))}"


def _check_alone(prompt: str | None, prompt_template: str | None) -> None:
    """Raise for inputs that messages exclude."""
    if prompt:
        raise PromptOrMessages(given="not both")
    if prompt_template:
        raise InvalidInput(
            name="prompt_template", expected="left out where there are messages", value=prompt_template
        )


def _parameters(**given: float | None) -> dict[str, Any]:
    return {name: _DEFAULTS[name] if value is None else value for name, value in given.items()}


def _max_tokens(max_tokens: int | None, max_new_tokens: int | None) -> int:
    max_tokens = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
    if max_new_tokens is None or max_new_tokens == max_tokens:
        return max_tokens
    if max_tokens != DEFAULT_MAX_TOKENS:
        raise InvalidArgumentMaxTokens(max_tokens=max_tokens, max_new_tokens=max_new_tokens)
    return max_new_tokens


def _min_tokens(min_tokens: int | None, min_new_tokens: int | None) -> int:
    if min_new_tokens is None or min_new_tokens == min_tokens:
        return min_tokens or 0
    if min_tokens is not None:
        raise InvalidArgumentMinTokens(min_tokens=min_tokens, min_new_tokens=min_new_tokens)
    return min_new_tokens


def _guide(json_schema: str | None, regex: str | None) -> Guide | None:
    if json_schema is not None and regex is not None:
        raise InvalidInput(name="regex", expected="left out, because there is a json_schema", value=regex)
    if json_schema is not None:
        return Guide("json_schema", json_schema)
    return None if regex is None else Guide("regex", regex)
