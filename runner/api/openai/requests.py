"""Conversion of a body to requests of the generation core: one for each prompt."""

from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from engine.kinds import Capability, supports
from engine.pooling import Pooling
from errors.api import UnsupportedField
from errors.chat import ChatTemplateRefused
from errors.requests import InvalidInput
from runner.api.generations import PromptRequest
from runner.api.openai.answer_form import with_answer_form
from runner.api.openai.bodies import (
    MAX_INT32,
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    GenerationBody,
    Prompt,
    TokenizeBody,
)
from runner.api.openai.guides import guide_of
from runner.api.openai.images import take_images
from runner.api.openai.reasoning import EFFORT, template_arguments
from runner.api.openai.tool_use import callable_tools, shown_tools, tool_use
from runner.api.served import Served, core_values
from runner.detokenizer.detokenizer import Detokenizer
from runner.engines.protocol.messages import SEEDS, Sampling
from runner.generation.request import GenerationRequest, random_seed
from runner.settings.settings import Settings

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for completions. A chat's answer may use all that the model has room for."""
MAX_INPUTS = 2048
"""Limit of inputs that one call embeds, as OpenAI's."""
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
PARAMETERS = ("temperature", "top_p", "top_k", "min_p", *_PENALTIES)
"""Fields that are sampling parameters of the core by the same names."""
_MAX_ID_DIGITS = 10


def completion_requests(body: CompletionBody, served: Served) -> list[PromptRequest]:
    """Make a request per prompt. Raises a CodedError that names the field."""
    if body.echo and body.logprobs is not None:
        expected = "false where there is logprobs, as those of the prompt are not known"
        raise InvalidInput(name="echo", expected=expected, value=True)
    prompts = _prompts(body.prompt)
    first = _request(body, served, prompts[0], DEFAULT_COMPLETION_TOKENS, body.logprobs)
    if body.echo:
        first = replace(first, is_echoed=True)
    requests = []
    for number, prompt in enumerate(prompts):
        echo = ""
        if body.echo:
            detokenizer = Detokenizer(served.model.tokenizer, skip_special_tokens=False)
            echo = prompt if isinstance(prompt, str) else detokenizer.follow(prompt)
        request = first
        if number:
            sampling = replace(first.sampling, seed=_seed(body))
            request = replace(first, prompt=prompt, sampling=sampling)
        requests.append(PromptRequest(request, body.n or 1, echo))
    return requests


def embedding_requests(body: EmbeddingBody, served: Served) -> list[GenerationRequest]:
    """Make a request per input. Raises a CodedError that names the field."""
    pooling = served.model.pooling
    assert pooling is not None
    if body.dimensions is not None and not pooling.allows(body.dimensions):
        raise InvalidInput(name="dimensions", expected=_dimensions(pooling), value=body.dimensions)
    inputs = _prompts(body.input, "input")
    if len(inputs) > MAX_INPUTS:
        raise InvalidInput(name="input", expected=f"at most {MAX_INPUTS} inputs", value=len(inputs))
    first = GenerationRequest(
        prompt=inputs[0],
        max_tokens=0,
        min_tokens=0,
        stop_sequences=(),
        sampling=Sampling(),
        lora_name=served.adapter(body.model),
        embeds=True,
    )
    return [replace(first, prompt=each) for each in inputs]


def _dimensions(pooling: Pooling) -> str:
    if pooling.shorter is None:
        return f"{pooling.size} or left out, as the model's config.json allows no other (is_matryoshka)"
    if pooling.shorter:
        return f"one of {', '.join(map(str, (*pooling.shorter, pooling.size)))}"
    return f"from 1 to {pooling.size}"


def num_prompts(given: Prompt) -> int:
    """Count the prompts of a completion's unchecked ``prompt``: token ids are one prompt."""
    return 1 if isinstance(given, str) or isinstance(given[0], int) else len(given)


def num_texts(body: GenerationBody, num_prompts: int, limit: int) -> int:
    """Count the texts of all prompts. Raises E1005 for more than this server ever generates at once."""
    if num_prompts > limit:
        expected = f"at most {limit} prompts (OPENAI_MAX_REQUESTS)"
        raise InvalidInput(name="prompt", expected=expected, value=num_prompts)
    n = body.n or 1
    if n * num_prompts > limit:
        expected = f"so small that there are at most {limit} texts in all (OPENAI_MAX_REQUESTS)"
        raise InvalidInput(name="n", expected=expected, value=n)
    return n * num_prompts


def chat_request(body: ChatBody, served: Served) -> PromptRequest:
    """Make the request. Raises a CodedError that names the field, and the errors of chat templates."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        expected = f"max_tokens ({body.max_tokens}), of which it is the newer name"
        raise InvalidInput(name="max_completion_tokens", expected=expected, value=body.max_completion_tokens)
    if body.top_logprobs and not body.logprobs:  # NOTE: vLLM's clients send its default, 0.
        raise InvalidInput(name="logprobs", expected="true where there is top_logprobs", value=body.logprobs)
    taken = take_images(body.messages, served, body.n or 1)
    body = replace(body, messages=taken.messages)
    use = tool_use(body, served.engine_kind)
    tools = callable_tools(body, use)
    prompt = _prompt_with_effort(replace(body, tools=tools), served, taken.mark)
    top = (body.top_logprobs or 0) if body.logprobs else None
    default_max_tokens = body.max_completion_tokens or max(served.default_max_tokens, body.min_tokens or 0)
    request = _request(body, served, prompt, default_max_tokens, top)
    request = replace(request, adds_special_tokens=False, begins_turn=not body.continue_final_message)
    request = with_answer_form(request, body, use, served)
    return PromptRequest(request, body.n or 1, images=taken.images)


def _prompt_with_effort(body: ChatBody, served: Served, image_mark: str) -> str:
    """Return the prompt with the body's effort, or without if the template refuses it (Qwen 3.8's)."""
    arguments = template_arguments(body, served.model.chat)
    try:
        return chat_prompt(replace(body, chat_template_kwargs=arguments), served, image_mark)
    except ChatTemplateRefused:
        given = body.chat_template_kwargs or {}
        if EFFORT not in (arguments or {}) or EFFORT in given:
            raise
        arguments = {name: value for name, value in (arguments or {}).items() if name != EFFORT}
        with suppress(ChatTemplateRefused):
            return chat_prompt(replace(body, chat_template_kwargs=arguments), served, image_mark)
        raise


def chat_prompt(fields: ChatBody | TokenizeBody, served: Served, image_mark: str = "") -> str:
    """Return the text that the chat template makes. Raises E1005 and the errors of chat templates.

    ``image_mark``: see ``TakenImages``.
    """
    if fields.continue_final_message and fields.add_generation_prompt:
        raise InvalidInput(
            name="add_generation_prompt", expected="false where continue_final_message is true", value=True
        )
    return served.model.chat.render(
        fields.messages or [],
        system_prompt=served.settings.system_prompt,
        tools=shown_tools(fields.tools),
        documents=fields.documents,
        continues=bool(fields.continue_final_message),
        adds_generation_prompt=fields.add_generation_prompt is not False,
        arguments=fields.chat_template_kwargs,
        image_mark=image_mark,
    )


def _request(
    body: GenerationBody,
    served: Served,
    prompt: str | list[int],
    default_max_tokens: int,
    top_log_probs: int | None,
) -> GenerationRequest:
    _check_supported(body, served, top_log_probs)
    max_tokens = body.max_tokens or default_max_tokens
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidInput(name="min_tokens", expected=f"at most max_tokens ({max_tokens})", value=min_tokens)
    return GenerationRequest(
        prompt=prompt,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_sequences=_stops(body, served.settings),
        stop_token_ids=body.stop_token_ids or (),
        sampling=_sampling(body, served),
        ignores_end=bool(body.ignore_eos),
        num_top_log_probs=top_log_probs,
        guide=guide_of(body, served.engine_kind),
        skips_special_tokens=body.skip_special_tokens is not False,
        lora_name=served.adapter(body.model),
        cache_salt=body.cache_salt,
        priority=body.priority,
        max_queue_ms=body.max_queue_ms or served.settings.max_queue_ms,
    )


def _sampling(body: GenerationBody, served: Served) -> Sampling:
    given = {name: value for name in PARAMETERS if (value := getattr(body, name)) is not None}
    bias, seed = _logit_bias(body.logit_bias or {}), _seed(body)
    return replace(served.sampling, **core_values(given), logit_bias=bias, seed=seed)


def _seed(body: GenerationBody) -> int:
    return random_seed() if body.seed is None else body.seed % SEEDS


def _check_supported(body: GenerationBody, served: Served, top_log_probs: int | None) -> None:
    """Raise E1602 for a field that this kind of engine does not support."""
    asked: dict[Capability, object] = {
        "min_p": body.min_p,
        "logit_bias": body.logit_bias,
        "cache_salt": body.cache_salt,
        "priority": body.priority,
        "log_probs": top_log_probs is not None,
    }
    for capability, value in asked.items():
        if value and not supports(served.engine_kind, capability):
            name = "logprobs" if capability == "log_probs" else capability
            raise UnsupportedField(
                name=name, value=value, engine_kind=served.engine_kind, remedy="leave it out"
            )


def _logit_bias(given: Mapping[str, float]) -> dict[int, float]:
    for token in given:
        if not token.isdecimal() or len(token) > _MAX_ID_DIGITS or int(token) > MAX_INT32:
            raise InvalidInput(name="logit_bias", expected="an object whose keys are token ids", value=token)
    return {int(token): bias for token, bias in given.items() if bias}


def _stops(body: GenerationBody, settings: Settings) -> tuple[str, ...]:
    if body.stop is None:
        return tuple(filter(None, (settings.stop_sequences or "").split(",")))
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def _prompts(given: Prompt, field: str = "prompt") -> list[str | list[int]]:
    """Return the prompts of a string, token ids, or a list of either. Raises E1005 for a mixture."""
    if isinstance(given, str):
        return [given]
    kinds = {type(each) for each in given}
    if len(kinds) > 1:
        raise InvalidInput(
            name=field, expected="a list of strings only, or of lists of token ids only", value=given
        )
    if kinds == {int}:
        return [[each for each in given if isinstance(each, int)]]
    return [each for each in given if not isinstance(each, int)]
