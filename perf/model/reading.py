"""What it costs to read an answer in the form of a model family: CPU per token beyond that of plain text.

    python -m perf reading --tokenizer tokenizer.json

Each family reads prose as content and as reasoning, and a call of a tool whose argument is source code, or
a table. Tokens arrive one by one, which costs most.
"""

import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer

from engine.machine.root import SOURCE_ROOT
from perf.options import Options
from perf.table import table
from runner.chat.families.family import AnswerForm, Family
from runner.chat.families.recognition import FAMILIES
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.named_calls import NamedCalls
from runner.chat.families.tools import Tool, ToolUse
from runner.detokenizer.detokenizer import Detokenizer
from runner.generation.parts_decoder import PartsDecoder
from runner.generation.special_stops import SpecialStops
from runner.generation.stop_filter import StopFilter
from runner.generation.stop_sequences import StopSequences

_TOOLS = ToolUse((Tool("f", parameters={"properties": {"table": {"type": "array"}}}),))
_HEADS = {
    "qwen3-coder": "<tool_call>\n<function=f>\n<parameter={key}>\n",
    "glm": "<tool_call>f\n<arg_key>{key}</arg_key>\n<arg_value>",
    "llama4": "<|python_start|>[f({key}=",
    "deepseek-v3.2": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="{key}">',
    "deepseek-v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="{key}">',
    "gpt-oss": '<|channel|>commentary to=functions.f<|message|>{{"{key}": ',
}
"""Of calls that are no objects of JSON after a name, up to the value of an argument."""
_JSON = "gpt-oss"
_HEAD = ("family: what it reads", "markers are tokens, µs", "markers are text, µs")


class Text(msgspec.Struct, frozen=True):
    what: str
    head: str
    body: str
    """What is measured."""


def texts(family: Family) -> Iterator[Text]:
    rng = random.Random(0)
    prose = (SOURCE_ROOT / "SECURITY.md").read_text() * 30
    code = Path(__file__).with_name("tool_calls.py").read_text() * 2
    rows = [{"id": n, "x": rng.random(), "tags": ["a", str(n)], "at": [1, {"ok": True}]} for n in range(400)]
    yield Text("content", "<|channel|>final<|message|>" if family.has_channels else "", prose)
    if family.reasoning is not None:
        yield Text("reasoning", family.reasoning.begin, prose)
    for key, value in (("code", code), ("table", rows)):
        yield Text(f"a call with {key}", _head(family).format(key=key), _written(family, value))


def _head(family: Family) -> str:
    calls = family.calls
    if isinstance(calls, JsonCalls):
        begin = (calls.begins or ("",))[0] + "[" * calls.is_list
        return f'{begin}{{{{"{calls.name_key}": "f", "{calls.arguments_key}": {{{{"{{key}}": '
    if isinstance(calls, NamedCalls):
        begin = f"{calls.section_begin}{calls.before_name or calls.begin}f{':0' * calls.is_numbered}"
        return f'{begin}{calls.before_arguments or calls.separator}{{{{"{{key}}": '
    return _HEADS[family.name]


def _written(family: Family, value: object) -> str:
    """An argument, as models of the family write it."""
    if family.name == "llama4":
        return repr(value)
    is_raw = family.name in _HEADS and family.name != _JSON and isinstance(value, str)
    return str(value) if is_raw else json.dumps(value)


def _markers(family: Family) -> list[str]:
    spans = [] if family.has_channels else [family.reasoning, *family.wrappers]
    markers = [*family.calls.begins, *family.calls.markers] if family.calls is not None else []
    for span in spans:
        markers += [span.begin, span.end] if span is not None else []
    return [marker for marker in markers if marker[-1:] in (">", "]")]


def _plain_us(tokenizer: Tokenizer, tokens: Sequence[int]) -> float:
    """CPU per token."""
    detokenizer, stop = Detokenizer(tokenizer), StopFilter(())
    started_s = time.thread_time()
    for token in tokens:
        stop.push(detokenizer.push([token]))
    return (time.thread_time() - started_s) / len(tokens) * 1e6


def _read_us(decoder: PartsDecoder, tokens: Sequence[int]) -> float:
    started_s = time.thread_time()
    for token in tokens:
        decoder.push([token])
    return (time.thread_time() - started_s) / len(tokens) * 1e6


def cost_us(family: Family, tokenizer: Tokenizer, text: Text, tokens: Sequence[int], rounds: int) -> float:
    """CPU per token, least of all rounds, beyond that of plain text in turns with it."""
    form = AnswerForm(family, _TOOLS)
    plain, read = [], []
    for _ in range(rounds):
        plain.append(_plain_us(tokenizer, tokens))
        decoder = PartsDecoder(
            form, tokenizer, Detokenizer(tokenizer), SpecialStops(StopSequences(()), tokenizer)
        )
        decoder.push(tokenizer.encode(text.head, add_special_tokens=False).ids)
        read.append(_read_us(decoder, tokens))
    return min(read) - min(plain)


def main(arguments: Sequence[str]) -> int:
    options = Options("reading", __doc__)
    default = SOURCE_ROOT / "builder" / "examples" / "tiny" / "model" / "tokenizer.json"
    options.add_argument("--tokenizer", default=default, help="the tokenizer.json of a model")
    options.add_argument("--tokens", type=int, default=2500, help="of each text")
    options.add_argument("--rounds", type=int, default=20, help="of each text")
    options.add_argument("families", nargs="*", metavar="FAMILY", help="some of them (default: all)")
    given = options.parse_args(arguments)
    rows = []
    for family in [FAMILIES[name] for name in given.families or FAMILIES]:
        for text in texts(family):
            plain = Tokenizer.from_file(str(given.tokenizer))
            tokens = plain.encode(text.body[: given.tokens * 8], add_special_tokens=False).ids[: given.tokens]
            marked = Tokenizer.from_file(str(given.tokenizer))
            marked.add_special_tokens([AddedToken(marker, normalized=False) for marker in _markers(family)])
            costs = [cost_us(family, each, text, tokens, given.rounds) for each in (marked, plain)]
            rows.append([f"{family.name}: {text.what}", *(f"{cost:.2f}" for cost in costs)])
    print(table(_HEAD, rows))
    return 0
