"""Required calls of tools, asked of several servers of the same model with the same prompts, in turns.

    python -m perf tool-calls http://127.0.0.1:9000 http://127.0.0.1:8100

Each URL is a server with POST /v1/chat/completions, whatever engine is behind it. Counted are the answers
that are calls of a known tool whose arguments fit its schema; measured is what a client waits for.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

from errors.requests import InvalidInput
from perf.load.choose_target import only_model
from perf.load.clients import Run, run
from perf.load.plan import Plan
from perf.load.record import Answer
from perf.load.response import Response, events
from perf.load.targets.in_order import InOrder
from perf.load.targets.target import Posting
from perf.options import Options
from perf.rounds import median
from perf.table import table

_UNITS = ("celsius", "fahrenheit")
_CITIES = ("Paris", "São Paulo", "東京", "Reykjavík", 'the "old" town', "New\nYork")
_TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "city": {"type": "string", "maxLength": 40},
        "unit": {"type": "string", "enum": list(_UNITS)},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "book_table": {
        "people": {"type": "integer", "minimum": 1, "maximum": 20},
        "outside": {"type": "boolean"},
    },
}
_TYPES = {"string": str, "integer": int, "boolean": bool}
_HEAD = ("server", "requests", "valid", "first delta, ms", "call, ms", "requests/s")
_DURATION_S = 3600.0
"""More than a turn takes."""


class RequiredCall(Posting):
    """Request ``number``. Its answer is completed if it is a call of a known tool with arguments that fit."""

    def __init__(self, url: str, model: str, number: int) -> None:
        super().__init__(url, "/v1/chat/completions", body(number, model), {})

    def read_ok(self, response: Response) -> Answer:
        answer, name, arguments = Answer(), "", ""
        for event in events(response):
            document = json.loads(event.data) if event.data != b"[DONE]" else {}
            if "error" in document:
                return Answer(outcome="failed", error=str(document["error"]))
            usage = document.get("usage") or {}
            answer.output_tokens = usage.get("completion_tokens", answer.output_tokens)
            for choice in document.get("choices", ()):
                for call in choice["delta"].get("tool_calls") or ():
                    answer.output_s.append(event.at_s)
                    name += call["function"].get("name") or ""
                    arguments += call["function"].get("arguments") or ""
        answer.error = problem(name, arguments)
        answer.outcome = "failed" if answer.error else "completed"
        return answer


def problem(name: str, arguments: str) -> str:
    """Why the call is not what was asked for; empty if it is."""
    if name not in _TOOLS:
        return f"a call of {name!r}"
    try:
        given = json.loads(arguments)
    except ValueError:
        return f"arguments that are no JSON: {arguments[:80]}"
    return "" if fits(given, _TOOLS[name]) else f"arguments that do not fit: {arguments[:80]}"


def fits(given: object, properties: dict[str, dict[str, Any]]) -> bool:
    """Whether an object has just these properties, each as its schema says."""
    if not isinstance(given, dict) or given.keys() != properties.keys():
        return False
    for name, schema in properties.items():
        value = given[name]
        if type(value) is not _TYPES[schema["type"]] or value not in schema.get("enum", [value]):
            return False
        if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
            return False
        is_number = type(value) is int
        if is_number and not schema["minimum"] <= value <= schema["maximum"]:
            return False
    return True


def body(number: int, model: str) -> dict[str, Any]:
    """Request ``number``: the same for each server."""
    city = _CITIES[number % len(_CITIES)]
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": [*properties],
                    "additionalProperties": False,
                },
            },
        }
        for name, properties in _TOOLS.items()
    ]
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Request {number}: how is the weather in {city}?"}],
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 200,
        "temperature": 0.7,
        "seed": number,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def main(arguments: Sequence[str]) -> int:
    options = Options("tool-calls", __doc__)
    options.add_argument("urls", nargs="+", metavar="URL", help="a server, by its address without /v1")
    options.add_argument("--requests", type=int, default=200, help="of each server, in each turn")
    options.add_argument("--at-once", type=int, default=32, help="requests at once")
    options.add_argument("--rounds", type=int, default=3, help="turns of each server")
    given = options.parse_args(arguments)
    if min(given.requests, given.at_once, given.rounds) < 1:
        raise InvalidInput(name="--requests, --at-once, --rounds", expected="at least 1", value=arguments)
    models = {url: asyncio.run(only_model(url)) for url in given.urls}
    plan = Plan("concurrency", min(given.at_once, given.requests), _DURATION_S, most_requests=given.requests)
    turns: dict[str, list[Run]] = {url: [] for url in given.urls}
    for first in range(0, given.rounds * given.requests, given.requests):
        for url in random.sample(given.urls, len(given.urls)):
            calls = [RequiredCall(url, models[url], first + number) for number in range(given.requests)]
            turns[url].append(run(plan, InOrder(calls)))
    print(table(_HEAD, [_row(url, runs) for url, runs in turns.items()]))
    problems = {each.answer.error for runs in turns.values() for turn in runs for each in turn.records}
    for each in sorted(problems - {""})[:10]:
        print(each)
    return int(problems != {""})


def _row(url: str, turns: Sequence[Run]) -> list[str]:
    records = [record for turn in turns for record in turn.records]
    valid = [record for record in records if record.is_completed]
    first_ms = 1000 * (median(record.first_token_s for record in valid) or 0.0)
    whole_ms = 1000 * (median(record.latency_s for record in valid) or 0.0)
    rate = median(len(turn.records) / turn.duration_s for turn in turns)
    return [url, str(len(records)), str(len(valid)), f"{first_ms:.0f}", f"{whole_ms:.0f}", f"{rate:.1f}"]
