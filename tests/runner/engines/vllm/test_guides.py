"""Guides on the vllm engine, over a stand-in for vLLM: checked here, handed over as vLLM wants them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="is in the engine environment")


from msgspec.structs import replace

from errors.requests import InvalidTensor
from runner.engines.protocol.messages import ChatForm, Guide, Sampling, Sleep, Submit
from runner.engines.vllm.arguments import guide_end_id, read_arguments
from tests.runner.engines.guides.byte_tokenizer import END_ID, save_byte_tokenizer
from tests.runner.engines.listening import Listening
from tests.runner.engines.vllm.vllm_engines import LIBRARY, make_python, make_vllm_directory, running

pytestmark = pytest.mark.engine_env
GREEDY = Sampling(top_k=1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = make_vllm_directory(tmp_path / "engine", enable_sleep_mode=True)
    save_byte_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    return folder


@pytest.fixture
def engine(directory: Path, tmp_path: Path) -> Iterator[Listening]:
    with running(directory, make_python(tmp_path / "python", sys.executable)) as engine:
        yield engine


def test_vllm_gets_the_tokenizer_where_there_is_one(directory: Path, tmp_path: Path) -> None:
    assert read_arguments(directory, {})["skip_tokenizer_init"] is False
    assert guide_end_id(directory) == END_ID
    bare = make_vllm_directory(tmp_path / "bare")
    assert read_arguments(bare, {})["skip_tokenizer_init"] is True


@pytest.mark.parametrize(
    ("guide", "field", "value"),
    [
        (Guide("json"), "json", '"whitespace_pattern"'),
        (
            Guide("json_schema", '{"type": "array", "uniqueItems": false}'),
            "json",
            '{"type": "array", "x-guidance"',
        ),
        (Guide("regex", "a+"), "regex", "a+"),
        (Guide("ebnf_grammar", "root ::= [0-9]"), "grammar", "root ::= [0-9]"),
        (ChatForm("start: part_0", [("", Guide("regex", "b*"))]).guide(), "grammar", "part_0: /"),
    ],
)
def test_a_guide_is_handed_over_as_it_was_compiled(
    monkeypatch: pytest.MonkeyPatch, guide: Guide, field: str, value: str
) -> None:
    monkeypatch.syspath_prepend(str(LIBRARY))
    from llguidance import LLTokenizer

    from runner.engines.guides.grammar import grammar_of
    from runner.engines.vllm.request import structured_outputs

    parameters = structured_outputs(guide, grammar_of(guide, LLTokenizer("byte")))
    given = {name: getattr(parameters, name) for name in ("json", "regex", "grammar")}
    assert value in given.pop(field)
    assert set(given.values()) == {None}
    assert parameters._backend == "guidance"


def test_a_guided_request_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LIBRARY))
    from runner.engines.vllm.request import check_limits, core_request

    guided = core_request(Submit(1, [5], 3, GREEDY, end_id=7, guide=Guide("json")), None, END_ID)
    assert guided.sampling_params.stop_token_ids == [7, END_ID]
    free = core_request(Submit(1, [5], 3, GREEDY, end_id=7), None, END_ID).sampling_params
    assert (free.structured_outputs, free.stop_token_ids) == (None, [7])
    most = Submit(1, [5], 3, GREEDY, end_id=300, stop_words=[[number] for number in range(127)])
    check_limits(most, END_ID, has_drafts=False)
    with pytest.raises(InvalidTensor, match="at most 128 words of one token"):
        check_limits(replace(most, guide=Guide("json")), END_ID, has_drafts=False)


def test_a_wrong_guide_fails_alone_before_vllm_sees_it(engine: Listening) -> None:
    engine.send(Submit(1, [5], 3, GREEDY, guide=Guide("regex", "a(")))
    engine.send(Submit(2, [5], 3, GREEDY, guide=Guide("regex", "a*")))
    engine.send(Submit(3, [5], 3, GREEDY))
    form = ChatForm("start: part_0", [("the guide", Guide("regex", "b*"))])
    engine.send(Submit(4, [5], 3, GREEDY, guide=form.guide()))
    for request_id in (1, 2, 3, 4):
        engine.wait_for_end(request_id)
    assert (
        "E1105 InvalidGuide: The regex can't guide the output: at character 2: unclosed group."
        in engine.ends(1)[0]
    )
    assert engine.ends(2) == engine.ends(3) == engine.ends(4) == ["length"]
    assert not engine.is_closed


def test_a_request_cancelled_while_its_guide_compiles_ends_once(
    engine: Listening,
) -> None:
    properties = ",".join(f'"p{index}":{{}}' for index in range(3000))
    engine.send(Submit(1, [5], 3, GREEDY, guide=Guide("json_schema", f'{{"properties":{{{properties}}}}}')))
    engine.cancel(1)
    engine.wait_for_end(1)
    engine.send(Submit(2, [5], 3, GREEDY, guide=Guide("regex", "a*")))
    engine.wait_for_end(2)
    assert engine.ends(1) == ["cancelled"]
    assert engine.tokens(1) == []


def test_a_sleep_that_waits_also_waits_for_guides_that_compile(engine: Listening) -> None:
    engine.send(Submit(1, [5], 3, GREEDY, guide=Guide("regex", "[a-z]{1,200}")))
    engine.send(Sleep(2, 1, "wait"))
    assert engine.wait_for_end(2) == "end"
    assert engine.wait_for_end(1) == "length"
