"""Scripted answers: the exact tokens of a rule, their end, and rules that are wrong."""

import itertools
import json
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.machine.root import SOURCE_ROOT
from errors.settings import InvalidScript
from runner.engines.paced.adapter import SCRIPT_VARIABLE, PacedEngine, load
from runner.engines.paced.script import ONLY_REQUESTS, Script
from runner.engines.protocol.messages import ALL_GUIDE_TYPES, FinishReason, Submit
from tests.docs.blocks import blocks_of
from tests.runner.engines.recording_sink import RecordingSink
from tests.runner.scripted_engine import HERMES, hermes_call, make_scripted_model, write_script

PAGE = SOURCE_ROOT / "docs" / "rehearse.md"
CALL = hermes_call("get_weather", city="Paris")
ABSENT = "no file"


@dataclass
class Scripted:
    engine: PacedEngine
    sink: RecordingSink
    tokenizer: Tokenizer
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def answer(self, prompt: str, **more: Any) -> tuple[list[list[int]], FinishReason]:
        number, ids = next(self.numbers), self.tokenizer.encode(prompt).ids
        given = {"max_tokens": 1000, "end_id": self.end_id, **more}
        self.engine.submit(Submit(number, input_ids=ids, **given))
        _, reason = self.sink.wait(number)
        return [new for step in self.sink.steps for its_number, new in step if its_number == number], reason

    def text(self, prompt: str, **more: Any) -> str:
        steps, _ = self.answer(prompt, **more)
        ids = [token for step in steps for token in step]
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    @property
    def end_id(self) -> int:
        end_id = self.tokenizer.token_to_id(HERMES.end_token)
        assert end_id is not None
        return end_id


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripted")
    make_scripted_model(folder / "model")
    return folder


def start(folder: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    monkeypatch.setenv(SCRIPT_VARIABLE, value)
    directory = folder / "model" / "engine"
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return Scripted(load(directory, sink := RecordingSink(), {}), sink, tokenizer)


@pytest.fixture
def scripted(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    rules = [
        {"when": "weather in Paris", "answer": ["<think>I ask.</think>", {"text": CALL}]},
        {"when": "18 degrees", "answer": "It is 18 degrees in Paris."},
        {"when": "slowly", "answer": [{"pause_ms": 30, "ids": [7, 8]}, {"pause_ms": 20}]},
        {"when": "steps", "answer": [{"ids": [1, 2, 3, 4, 5], "tokens_per_step": 2}, {"ids": [6]}]},
        {"when": "nothing", "answer": []},
    ]
    made = start(folder, write_script(tmp_path, *rules), monkeypatch)
    yield made
    made.engine.close()


def test_the_answer_is_that_of_the_rule_whose_text_stands_last(scripted: Scripted) -> None:
    asked = "What is the weather in Paris?"
    called = f"<think>I ask.</think>{CALL}<|im_end|>"
    assert scripted.text(asked) == called
    assert scripted.text(f"{asked} {called} 18 degrees") == "It is 18 degrees in Paris.<|im_end|>"
    assert scripted.text(f"{asked} {called} 18 degrees. And the weather in Paris now?") == called


def test_special_tokens_in_a_text_are_those_tokens(scripted: Scripted) -> None:
    steps, reason = scripted.answer("weather in Paris")
    ids = [token for step in steps for token in step]
    names = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    assert [ids.count(scripted.tokenizer.token_to_id(name) or -1) for name in names] == [1, 1, 1, 1]
    assert (ids[-1], reason) == (scripted.end_id, "end")


def test_a_prompt_without_a_rule_is_repeated(scripted: Scripted) -> None:
    assert scripted.text("Hello ", max_tokens=50).startswith("Hello Hello ")


def test_tokens_come_in_the_steps_that_the_script_has(scripted: Scripted) -> None:
    assert scripted.answer("steps") == ([[1, 2], [3, 4], [5], [6], [scripted.end_id]], "end")


def test_a_pause_is_at_least_as_long_as_written(scripted: Scripted) -> None:
    start_s = time.perf_counter()
    assert scripted.answer("slowly") == ([[7, 8], [scripted.end_id]], "end")
    assert time.perf_counter() - start_s >= 0.05


@pytest.mark.parametrize(
    ("more", "ids", "reason"),
    [
        ({"max_tokens": 3}, [1, 2, 3], "length"),
        ({"max_tokens": 4}, [1, 2, 3, 4], "length"),
        ({"max_tokens": 6, "end_id": None}, [1, 2, 3, 4, 5, 6], "end"),
        ({"end_id": 3}, [1, 2, 3], "end"),
        ({"max_tokens": 3, "end_id": 3}, [1, 2, 3], "end"),
        ({"stop_words": [[4]]}, [1, 2, 3, 4], "stop"),
        ({"stop_words": [[2, 4], [2, 3, 4]]}, [1, 2, 3, 4], "stop"),
        ({"stop_words": [[4]], "max_tokens": 3}, [1, 2, 3], "length"),
    ],
)
def test_an_answer_ends_like_a_models(
    scripted: Scripted, more: dict[str, Any], ids: list[int], reason: FinishReason
) -> None:
    steps, ended = scripted.answer("steps", **more)
    assert ([token for step in steps for token in step], ended) == (ids, reason)


def test_an_empty_answer_is_the_end_alone(scripted: Scripted) -> None:
    assert scripted.answer("nothing") == ([[scripted.end_id]], "end")
    assert scripted.answer("nothing", end_id=None) == ([[]], "end")


def test_log_probabilities_come_with_each_token(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(scripted.sink, "log_probs", lambda new: counts.extend(len(each) for _, each in new))
    scripted.answer("steps", wants_log_probs=True, num_top_log_probs=2)
    assert counts == [2, 2, 1, 1, 1]


def test_a_request_has_rules_of_its_own_and_the_last_block_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = start(folder, ONLY_REQUESTS, monkeypatch)
    rules = [{"answer": "First."}, {"when": "sunny", "answer": CALL}]
    prompt = f"Hello\n```script\n{json.dumps(rules)}\n```\n"
    assert scripted.text(prompt) == "First.<|im_end|>"
    assert scripted.text(f"{prompt} It is sunny.") == f"{CALL}<|im_end|>"
    later = prompt + f"```script\n{json.dumps([{'answer': 'Second.'}])}\n```"
    assert scripted.text(later) == "Second.<|im_end|>"
    scripted.engine.close()


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("[", "Input data was truncated"),
        ('[{"answer": [{"pause_ms": -1}]}]', r"\$\[0\].answer\[0\].pause_ms"),
        ('[{"answer": [{"ids": [100000]}]}]', "token 100000 is not in the vocabulary"),
        ("[" * 5000, "The last block in the prompt is no valid script"),
    ],
)
def test_a_wrong_block_is_refused_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, block: str, reason: str
) -> None:
    scripted = start(folder, ONLY_REQUESTS, monkeypatch)
    with pytest.raises(InvalidScript, match=reason):
        scripted.answer(f"```script\n{block}\n```")
    assert scripted.text("```script\n[]\n```ab", max_tokens=2)
    scripted.engine.close()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- answer: a\n- answer: [\n", "line 3, is no valid script: expected the node content"),
        ("- answer: a\n- when: b\n", "line 2, is no valid script: .*missing required field `answer`"),
        ("- answer: a\n\n- when: b\n  reply: c\n", "line 3, is no valid script: .*unknown field `reply`"),
        ("- answer: !!python/name:os.system\n", "line 1, is no valid script: could not determine"),
        ("answer: a\n", "is no valid script: a list is expected; correct it as docs/rehearse.md"),
        ("", "a list is expected"),
        ("\x00", "special characters are not allowed"),
        (ABSENT, r"/script.yaml is no valid script: No such file.*; set COG_TRITON_SCRIPT to a file"),
    ],
)
def test_a_wrong_file_is_a_coded_error_with_its_line(
    folder: Path, tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "script.yaml"
    if text != ABSENT:
        path.write_text(text)
    with pytest.raises(InvalidScript, match=sentence):
        Script(str(path), folder / "model" / "engine" / "tokenizer.json", 400, 1)


def test_guides_are_taken_with_a_script_alone(
    folder: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scripted.engine.ready.guide_types == ALL_GUIDE_TYPES
    monkeypatch.delenv(SCRIPT_VARIABLE)
    engine = load(folder / "model" / "engine", RecordingSink(), {})
    assert engine.ready.guide_types == ()
    engine.close()


def test_the_documented_script_calls_a_tool_and_then_answers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text,) = [block.text for block in blocks_of(PAGE) if "# script.yaml" in block.text]
    (tmp_path / "script.yaml").write_text(text)
    scripted = start(folder, str(tmp_path / "script.yaml"), monkeypatch)
    thought = "<think>The user asks for the weather. I call the tool.</think>"
    asked = "How is the weather in Paris?"
    assert scripted.text(asked) == f"{thought}{CALL}<|im_end|>"
    assert scripted.text(f"{asked}{CALL}18 degrees") == "It is 18 degrees in Paris.<|im_end|>"
    assert scripted.text("Good morning") == "Hello!<|im_end|>"
    (message,) = [block.text for block in blocks_of(PAGE) if "```script" in block.text]
    assert scripted.text(textwrap.dedent(message)).startswith('<tool_call>{"name": "get_weather"')
    scripted.engine.close()
