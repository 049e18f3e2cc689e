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
from runner.chat.families.glm import KeyValueCalls
from runner.chat.families.llama4 import PythonCalls
from runner.chat.families.qwen3_coder import FunctionCalls
from runner.chat.families.recognition import FAMILIES
from runner.chat.families.syntax.invoke_calls import InvokeCalls
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
    "gpt-oss": '<|channel|>commentary to=functions.f<|message|>{{"{key}": ',
    "gemma-4": '<|tool_call>call:f{{{key}:<|"|>',
    "functiongemma": "<start_function_call>call:f{{{key}:<escape>",
    "minimax-m3": ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<{key}>',
    "kimi-k3": (
        '<|open|>tools<|sep|><|open|>call tool="f"<|sep|><|open|>argument key="{key}" type="string"<|sep|>'
    ),
    "apertus": '<|tools_prefix|>[{{"f": {{"{key}": ',
    "functionary": 'f\n{{"{key}": ',
    "solar": '<|tool_calls|><|tool_call:begin|>a<|tool_call:name|>f<|tool_call:args|>{{"{key}": ',
}
"""Of calls that no syntax below writes, up to the value of an argument."""
_JSON = ("gpt-oss", "apertus", "functionary", "solar")
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
    if family.name in _HEADS:
        return _HEADS[family.name]
    match family.calls:
        case JsonCalls() as calls:
            begin = (calls.begins or ("",))[0] + "[" * calls.is_list
            return f'{begin}{{{{"{calls.name_key}": "f", "{calls.arguments_key}": {{{{"{{key}}": '
        case NamedCalls() as calls:
            begin = f"{calls.section_begin}{calls.before_name or calls.begin}f{':0' * calls.is_numbered}"
            return f'{begin}{calls.before_arguments or calls.separator}{{{{"{{key}}": '
        case FunctionCalls() as calls:
            return f"{calls.begin}\n{calls.function}f>\n{calls.parameter}{{key}}>\n"
        case InvokeCalls() as calls:
            section = f"{calls.begins[0]}\n" * bool(calls.section)
            return f'{section}{calls.call}f">\n{calls.parameter}{{key}}">'
        case KeyValueCalls() as calls:
            begin = f"{calls.section_begin}{calls.begin}f{calls.after_name}"
            return f"{begin}\n{calls.key}{{key}}{calls.key_end}\n{calls.value}"
        case PythonCalls() as calls:
            return f"{''.join(calls.begins)}{'[' * calls.is_list}f({{key}}="
    raise AssertionError(family.name)


def _written(family: Family, value: object) -> str:
    """An argument, as models of the family write it."""
    if isinstance(family.calls, PythonCalls):
        return repr(value)
    is_json = isinstance(family.calls, JsonCalls | NamedCalls) or family.name in _JSON
    return json.dumps(value) if is_json or not isinstance(value, str) else value


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
