"""JSON bodies of hostile shapes and sizes, at random, for every endpoint that takes one."""

import json
from collections.abc import Callable, Collection
from random import Random
from typing import NamedTuple


class Endpoint(NamedTuple):
    """A body is ``before``, hostile members, and ``after``."""

    port: str
    path: str
    before: bytes
    after: bytes
    fields: str
    """Names of members, separated by spaces."""
    most_bytes: int = 20_000_000


_SAMPLING = "max_tokens min_tokens temperature top_p top_k seed repetition_penalty "
_OPENAI = (
    _SAMPLING + "n stop logit_bias logprobs response_format structured_outputs metadata guided_json "
    "guided_regex guided_choice guided_grammar stream_options model user "
)
_CHAT = "messages tools documents chat_template_kwargs chat_template"
_RESPONSES = "input instructions tools tool_choice text reasoning metadata include chat_template_kwargs"
_MESSAGES = "messages system tools tool_choice thinking output_config stop_sequences metadata"
_COG = "prompt prompt_template system_prompt stop_sequences json_schema regex messages lora_name"
_TENSORS = (
    _SAMPLING + "bad_words stop_words embedding_bias_words embedding_bias_weights beam_width text_input "
    "lora_name guided_decoding_guide cog_triton_stream cog_triton_x stream"
)
_SLOT = "input_ids input_lengths request_output_len stop_words_list logit_bias_ids stream_id"
_TRITON = b'{"text_input": "a", "max_tokens": 3, "bad_words": "", "stop_words": "", '
_INPUT = b'{"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"], '
_MODELS = "/v2/models"
ENDPOINTS = (
    Endpoint(
        "cog", "/predictions", b'{"input": {"prompt": "a", "max_tokens": 3, ', b"}}", _SAMPLING + _COG, 10**8
    ),
    Endpoint("api", "/v1/completions", b'{"prompt": "a", "max_tokens": 3, ', b"}", _OPENAI + "prompt"),
    Endpoint("api", "/v1/chat/completions", b'{"messages": [], "max_tokens": 3, ', b"}", _OPENAI + _CHAT),
    Endpoint("api", "/v1/responses", b'{"input": [], "max_output_tokens": 3, ', b"}", _SAMPLING + _RESPONSES),
    Endpoint("api", "/v1/responses/input_tokens", b'{"input": [], ', b"}", _RESPONSES),
    Endpoint("api", "/v1/messages", b'{"messages": [], "max_tokens": 3, ', b"}", _SAMPLING + _MESSAGES),
    Endpoint("api", "/v1/messages/count_tokens", b"{", b"}", _MESSAGES),
    Endpoint("api", "/v1/embeddings", b"{", b"}", "input model encoding_format dimensions user"),
    Endpoint("api", "/tokenize", b"{", b"}", "prompt " + _CHAT),
    Endpoint("api", "/detokenize", b"{", b"}", "tokens"),
    Endpoint("http", f"{_MODELS}/ensemble/generate", _TRITON, b"}", _TENSORS),
    Endpoint("http", f"{_MODELS}/ensemble/generate_stream", _TRITON, b"}", _TENSORS),
    Endpoint("http", f"{_MODELS}/preprocessing/generate", b"{", b"}", "QUERY REQUEST_OUTPUT_LEN"),
    Endpoint("http", f"{_MODELS}/postprocessing/generate", b"{", b"}", "TOKENS_BATCH SEQUENCE_LENGTH"),
    Endpoint(
        *("http", f"{_MODELS}/tensorrt_llm/generate", b'{"input_ids": [7], "request_output_len": 3, ', b"}"),
        _SAMPLING + _SLOT,
    ),
    Endpoint("http", f"{_MODELS}/ensemble/infer", _INPUT, b"}]}", "data shape datatype"),
    Endpoint(
        *("http", f"{_MODELS}/ensemble/infer", _INPUT + b'"parameters": {', b"}}]}"),
        "binary_data_size shared_memory_region shared_memory_byte_size cog_triton_stream",
    ),
    Endpoint(
        *("http", f"{_MODELS}/ensemble/infer", b'{"inputs": [], "parameters": {', b"}}"),
        "cog_triton_x sequence_id timeout priority triton_enable_empty_final_response",
    ),
)
_MEANT_FOR = {
    "guides": "guided_json guided_regex guided_grammar response_format regex json_schema",
    "templates with loops": "prompt_template messages chat_template chat_template_kwargs",
    "lists of long texts": "stop stop_words stop_sequences prompt",
}
_UNITS = (
    "a",
    "hi there ",
    " ",
    ",",
    "a,b",
    "\n",
    "{prompt}",
    "{system_prompt}",
    "</s>",
    "\0",
    "😀",
    "\ud800",
)
_PATTERNS = ("(a{1,999}){1,999}", "(a|aa)*b", "(((((((", "[^a]{0,9999}", r"(\w+\s)+$", "a**", r"(?=a)\1")
_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endfor %}"
_NUMBERS = b"1e999 -1e-999 NaN -Infinity -1 9223372036854775808 18446744073709551616 0.1e1 true null".split()


def any_endpoint(chance: Random, ports: Collection[str]) -> Endpoint:
    """All ports are equally likely."""
    port = chance.choice([each for each in ("cog", "api", "http") if each in ports])
    return chance.choice([each for each in ENDPOINTS if each.port == port])


def size(chance: Random, most: int) -> int:
    """All orders of magnitude are equally likely."""
    return int(most ** chance.random())


def _text(chance: Random, most_bytes: int) -> str:
    unit = chance.choice(_UNITS)
    return unit * (size(chance, most_bytes) // len(json.dumps(unit)) + 1)


def _number(chance: Random, most_bytes: int) -> bytes:
    digits = b"9" * size(chance, min(most_bytes, 1_000_000))
    return chance.choice((digits, b"-" + digits, b"0." + digits, b"1e" + digits, *_NUMBERS))


def _texts(chance: Random, most_bytes: int) -> object:
    count = size(chance, 64) + 1
    texts = [f"{each}{_text(chance, most_bytes // count)}" for each in range(count)]
    return chance.choice((texts, ",".join(texts)))


def _guide(chance: Random, most_bytes: int) -> object:
    pattern = chance.choice(_PATTERNS) * size(chance, 100_000)
    grammar = "root ::= " + 'root root | "a" ' * size(chance, 99_999)
    schema = chance.choice(({"$ref": "#"}, {"enum": [str(each) for each in range(size(chance, 99_999))]}))
    json_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return chance.choice((pattern, grammar, schema, json.dumps(schema), json_format))


def _loops(chance: Random, most_bytes: int) -> object:
    message = {"role": chance.choice(("user", _LOOP)), "content": chance.choice((_LOOP, [_LOOP], {_LOOP: 1}))}
    return chance.choice((_LOOP * size(chance, 9999), [message] * size(chance, 9999), {"a": _LOOP}))


VALUES: dict[str, Callable[[Random, int], object]] = {
    "long texts": _text,
    "numbers": _number,
    "lists of long texts": _texts,
    "guides": _guide,
    "templates with loops": _loops,
}
"""Values by kind: the JSON of a member's value, or the value."""


def body(chance: Random, kind: str, endpoint: Endpoint) -> bytes:
    """With one or two hostile members, some of them in fields that the kind is meant for."""
    fields = endpoint.fields.split()
    members = []
    for _ in range(chance.choice((1, 1, 2))):
        meant = [each for each in _MEANT_FOR.get(kind, "").split() if each in fields]
        names = (chance.choice(meant or fields), chance.choice(fields), "x" * size(chance, 100_000))
        (name,) = chance.choices(names, (6, 3, 1))
        value = VALUES[kind](chance, endpoint.most_bytes)
        members.append(
            b'"%b": ' % name.encode() + (value if isinstance(value, bytes) else json.dumps(value).encode())
        )
    return endpoint.before + b", ".join(members) + endpoint.after
