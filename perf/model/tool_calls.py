"""Required calls of tools, asked of several servers of the same model with the same prompts, in turns.

    python -m perf tool-calls http://127.0.0.1:9000 http://127.0.0.1:8100

Each URL is a server with POST /v1/chat/completions, whatever engine is behind it. Counted are the answers
that are calls of a known tool whose arguments fit its schema; measured is what a client waits for.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import urllib3

from errors.requests import InvalidInput
from perf.options import Options
from perf.table import table
from runner.triton_server.event_stream import EventParser

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
_HEADERS = {"Content-Type": "application/json"}


@dataclass
class Called:
    """The outcome of one request."""

    error: str = ""
    name: str = ""
    arguments: str = ""
    first_s: float = 0.0
    duration_s: float = 0.0
    output_tokens: int = 0

    @property
    def problem(self) -> str:
        """Why it is not what was asked for; empty if it is."""
        if self.error:
            return self.error
        if self.name not in _TOOLS:
            return f"a call of {self.name!r}"
        try:
            given = json.loads(self.arguments)
        except ValueError:
            return f"arguments that are no JSON: {self.arguments[:80]}"
        return "" if fits(given, _TOOLS[self.name]) else f"arguments that do not fit: {self.arguments[:80]}"


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


def body(number: int, model: str) -> bytes:
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
    return json.dumps(
        {
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
    ).encode()


def ask(pool: urllib3.PoolManager, url: str, data: bytes) -> Called:
    started_s = time.perf_counter()
    called, events = Called(), EventParser()
    response = pool.request(
        "POST", f"{url}/v1/chat/completions", body=data, headers=_HEADERS, preload_content=False
    )
    with response:
        if response.status != 200:
            return Called(error=f"HTTP {response.status}: {response.data[:200].decode(errors='replace')}")
        while part := response.read1(1 << 16):
            for event in events.feed(part):
                if event.data != b"[DONE]":
                    _take(called, json.loads(event.data), started_s)
    called.duration_s = time.perf_counter() - started_s
    return called


def _take(called: Called, document: dict[str, Any], started_s: float) -> None:
    called.error = called.error or str(document.get("error") or "")
    called.output_tokens = (document.get("usage") or {}).get("completion_tokens", called.output_tokens)
    for choice in document.get("choices", ()):
        for call in choice["delta"].get("tool_calls") or ():
            called.first_s = called.first_s or time.perf_counter() - started_s
            called.name += call["function"].get("name") or ""
            called.arguments += call["function"].get("arguments") or ""


def main(arguments: Sequence[str]) -> int:
    options = Options("tool-calls", __doc__)
    options.add_argument("urls", nargs="+", metavar="URL", help="a server, by its address without /v1")
    options.add_argument("--requests", type=int, default=200, help="of each server, in each turn")
    options.add_argument("--at-once", type=int, default=32, help="requests at once")
    options.add_argument("--rounds", type=int, default=3, help="turns of each server")
    given = options.parse_args(arguments)
    if min(given.requests, given.at_once, given.rounds) < 1:
        raise InvalidInput(name="--requests, --at-once, --rounds", expected="at least 1", value=arguments)
    pool = urllib3.PoolManager(maxsize=given.at_once, retries=False)
    models = {url: _model(pool, url) for url in given.urls}
    rows: dict[str, list[tuple[list[Called], float]]] = {url: [] for url in given.urls}
    for round_ in range(given.rounds):
        for url in random.sample(given.urls, len(given.urls)):
            bodies = [body(round_ * given.requests + number, models[url]) for number in range(given.requests)]
            started_s = time.perf_counter()
            with ThreadPoolExecutor(given.at_once) as threads:
                called = [*threads.map(lambda data, url=url: ask(pool, url, data), bodies)]
            rows[url].append((called, time.perf_counter() - started_s))
    print(table(["server", "requests", "valid", "first delta, ms", "call, ms", "requests/s"], _shown(rows)))
    problems = [each.problem for rounds in rows.values() for called, _ in rounds for each in called]
    for problem in sorted({each for each in problems if each})[:10]:
        print(problem)
    return int(any(problems))


def _model(pool: urllib3.PoolManager, url: str) -> str:
    """The first model of a server. Raises E1005 if there is none."""
    try:
        return str(json.loads(pool.request("GET", f"{url}/v1/models").data)["data"][0]["id"])
    except (urllib3.exceptions.HTTPError, ValueError, LookupError, TypeError) as exc:
        expected = f"that of a server with GET /v1/models ({type(exc).__name__})"
        raise InvalidInput(name="URL", expected=expected, value=url) from exc


def _shown(rows: dict[str, list[tuple[list[Called], float]]]) -> list[list[str]]:
    shown = []
    for url, rounds in rows.items():
        called = [each for answers, _ in rounds for each in answers]
        good = [each for each in called if not each.problem]
        first_ms = statistics.median([1e3 * each.first_s for each in good] or [0.0])
        whole_ms = statistics.median([1e3 * each.duration_s for each in good] or [0.0])
        rate = statistics.median(len(answers) / duration_s for answers, duration_s in rounds)
        shown.append(
            [url, str(len(called)), str(len(good)), f"{first_ms:.0f}", f"{whole_ms:.0f}", f"{rate:.1f}"]
        )
    return shown
