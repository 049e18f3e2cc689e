"""What the LLM API gets as a guide, checked here first, and as a tensor."""

from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="is in the engine environment")

from runner.engines.protocol.messages import GUIDE_TYPES, Guide, Sampling, Submit
from tests.runner.engines.guides.byte_tokenizer import END_ID, save_byte_tokenizer
from tests.runner.engines.tensorrt_llm_pytorch.llm_api_engines import make_directory, running

pytestmark = pytest.mark.engine_env
GREEDY = Sampling(top_k=1)
SCHEMA = '{"type": "array", "uniqueItems": false}'


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_guides_are_handed_over_as_the_backend_wants_them(tmp_path: Path, backend: str) -> None:
    directory = make_directory(tmp_path / "engine", guided_decoding_backend=backend)
    save_byte_tokenizer(directory)
    (directory / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    guides = (
        Guide("json"),
        Guide("json_schema", SCHEMA),
        Guide("regex", "a+"),
        Guide("ebnf_grammar", "root ::= [0-9]"),
    )
    with running(directory, tmp_path / "run") as client:
        assert client.ready.guide_types == GUIDE_TYPES
        assert client.llm()["skip_tokenizer_init"] is False
        given = []
        for number, guide in enumerate(guides, 1):
            client.answer(Submit(number, [5], 2, GREEDY, guide=guide))
            given.append(client.request(number)["sampling_params"])
        wrong = client.answer(Submit(9, [5], 2, GREEDY, guide=Guide("regex", "(")))[1]
        ended = client.answer(Submit(10, [5, END_ID], 9, GREEDY, guide=guides[0]))
    any_json, schema, regex, grammar = (each["guided_decoding"] for each in given)
    assert [each["stop_token_ids"] for each in given] == [[END_ID]] * 4
    assert "object" in any_json["json"]
    assert schema["json"] == SCHEMA
    assert regex["regex"] == "a+"
    assert ("root ::=" in grammar["grammar"]) == (backend == "xgrammar")
    assert "start:" in grammar["grammar"] or backend == "xgrammar"
    assert "E1105" in wrong
    assert ended == ([5, END_ID], "end")


def test_guides_are_not_checked_where_llguidance_is_too_old(tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "engine", guided_decoding_backend="xgrammar")
    save_byte_tokenizer(directory)
    (tmp_path / "run" / "llguidance").mkdir(parents=True)
    (tmp_path / "run" / "llguidance" / "__init__.py").write_text("")
    with running(directory, tmp_path / "run") as client:
        assert client.answer(Submit(1, [5], 2, GREEDY, guide=Guide("regex", "(")))[1] == "length"
        assert client.request()["sampling_params"]["guided_decoding"]["regex"] == "("


def test_a_logit_bias_and_bad_words_are_a_tensor_of_the_whole_vocabulary(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with running(make_directory(tmp_path / "engine"), tmp_path / "run") as client:
        sampling = Sampling(top_k=1, logit_bias={7: 3.5, 9: -2.0})
        assert client.answer(Submit(1, [5], 2, sampling)) == ([7, 7], "length")
        bad = Submit(2, [5, 6, 7], 3, GREEDY, bad_words=[[6], [7]])
        assert client.answer(bad) == ([5, 8, 8], "length")
