"""Conversion of the requests of Dynamo's front ends to messages for the engine server, and of its outputs.

A front end tokenizes, renders chat templates, detokenizes and finds stop texts. A request that was moved from
another worker has its tokens so far in its prompt.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from errors.api import UnknownField
from errors.requests import InvalidInput, PromptTooLong
from runner.dynamo.start import DynamoStart
from runner.engines.protocol.checks import MAX_CACHE_SALT, MAX_WORDS
from runner.engines.protocol.messages import FinishReason, Guide, Output, Sampling, Submit, TokenLogProb
from runner.generation.inputs import engine_sampling
from runner.settings.api_keys import allowed_priority

_REFUSED: Mapping[str, tuple[tuple[str, tuple[object, ...]], ...]] = {
    "sampling_options": (
        ("n", (1,)),
        ("best_of", (1,)),
        ("use_beam_search", ()),
        ("length_penalty", (1.0,)),
        ("include_stop_str_in_output", ()),
    ),
    "stop_conditions": (("max_thinking_tokens", ()),),
    "output_options": (("prompt_logprobs", ()), ("formatted_prompt", ())),
    "guided_decoding": (("whitespace_pattern", ()), ("structural_tag", ())),
}
"""Fields of a request's parts that are not supported, with the values that say nothing."""
_REFUSED_PARTS = ("multi_modal_data", "prefill_result", "bootstrap_info", "encoder_result")
_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed"),
)
_FINISH_REASONS: Mapping[FinishReason, str] = {"end": "eos"}
"""Dynamo's names of the reasons that it names otherwise."""


def submit_message(request: Mapping[str, Any], start: DynamoStart, lora_name: str | None) -> Submit:
    """Make the message. Raises E1002, E1005 or E1601 for what can't be served."""
    sampling, stop, output, routing = (
        request.get(name) or {}
        for name in ("sampling_options", "stop_conditions", "output_options", "routing")
    )
    guide = sampling.get("guided_decoding") or {}
    for name in _REFUSED_PARTS:
        _refuse(name, request.get(name))
    for part, fields in zip(_REFUSED, (sampling, stop, output, guide), strict=True):
        for name, neutral in _REFUSED[part]:
            if fields.get(name) not in neutral:
                _refuse(name, fields.get(name))
    input_ids = list(request["token_ids"])
    if len(input_ids) > start.max_input_length:
        raise PromptTooLong(prompt_tokens=len(input_ids), max_input_tokens=start.max_input_length)
    room = start.max_sequence_length - len(input_ids)
    asked = stop.get("max_tokens")
    max_tokens = room if asked is None else min(asked, room)
    cache_salt = routing.get("cache_salt")
    if cache_salt and len(cache_salt) > MAX_CACHE_SALT:
        expected = f"at most {MAX_CACHE_SALT} characters"
        raise InvalidInput(name="cache_salt", expected=expected, value=cache_salt)
    # A higher number of Dynamo's begins earlier, a lower one of ours.
    priority = -routing["priority"] if routing.get("priority") is not None else None
    log_probs = output.get("logprobs")
    return Submit(
        request_id=0,
        input_ids=input_ids,
        max_tokens=max_tokens,
        min_tokens=min(stop.get("min_tokens") or 0, max_tokens),
        sampling=_sampling(sampling, start.sampling_defaults),
        end_id=None if stop.get("ignore_eos") else start.end_ids[0],
        pad_id=start.pad_id,
        stop_words=_stop_words(stop, start),
        guide=_guide(guide),
        lora_name=lora_name,
        cache_salt=cache_salt,
        priority=allowed_priority({"": start.lowest_priority}, priority),
        wants_log_probs=log_probs is not None,
        num_top_log_probs=log_probs or 0,
    )


def chunk(
    output: Output, num_prompt_tokens: int, num_tokens: int, cached_tokens: int | None
) -> dict[str, Any]:
    """Return an output in Dynamo's form. ``num_tokens``: tokens of the text so far, these included."""
    made: dict[str, Any] = {"token_ids": output.tokens, "index": 0}
    if output.log_probs:
        made["log_probs"] = [each.value for each in output.log_probs]
        made["top_logprobs"] = [_top(each) for each in output.log_probs]
    if output.finish_reason is not None:
        made["finish_reason"] = _FINISH_REASONS.get(output.finish_reason, output.finish_reason)
        usage: dict[str, Any] = {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt_tokens + num_tokens,
        }
        if cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
        made["completion_usage"] = usage
    return made


def _refuse(name: str, value: object) -> None:
    if value is not None and value is not False and value not in ([], {}):
        raise UnknownField(name=name, remedy="leave it out, or send the request to this server's own API")


def _sampling(given: Mapping[str, Any], defaults: Mapping[str, float]) -> Sampling:
    values = {name: defaults.get(name) if given.get(name) is None else given[name] for name in _SAMPLING}
    set_values: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return engine_sampling(Sampling(**set_values))


def _stop_words(stop: Mapping[str, Any], start: DynamoStart) -> list[list[int]]:
    """Return the tokens that end a text, beside the engine's end id."""
    ends = () if stop.get("ignore_eos") else start.end_ids
    names = ("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden")
    ids = dict.fromkeys([*ends, *(each for name in names for each in stop.get(name) or ())])
    if ends:
        ids.pop(ends[0])
    return [[each] for each in ids][:MAX_WORDS]


def _guide(given: Mapping[str, Any]) -> Guide | None:
    """Return the guide. Raises E1005 if there are several."""
    asked = {
        name: given[name] for name in ("json", "regex", "choice", "grammar") if given.get(name) is not None
    }
    if len(asked) > 1:
        first, second, *_ = asked
        raise InvalidInput(
            name=f"guided_{second}", expected=f"left out, because there is guided_{first}", value=""
        )
    match asked:
        case {"json": schema}:
            text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
            return Guide("json_schema", text)
        case {"regex": regex}:
            return Guide("regex", regex)
        case {"choice": choices}:
            return Guide.of_choices(choices)
        case {"grammar": grammar}:
            return Guide("ebnf_grammar", grammar)
    return None


def _top(log_prob: TokenLogProb) -> list[dict[str, Any]]:
    """Return the likeliest tokens at one place. The front end adds their texts."""
    return [
        {"rank": rank, "token_id": token, "token": None, "logprob": value}
        for rank, (token, value) in enumerate(log_prob.top, 1)
    ]
