"""What only an engine that samples can show: seeds, log probabilities, biases and ends, on a real model."""

import math
from typing import Any

import pytest

from tests.runner.api.apis import API

pytestmark = pytest.mark.servers

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPT = "Once upon a time"


def text_of(api: API, **fields: Any) -> str:
    (choice,) = api.ask(TEXT, **{"prompt": PROMPT, "max_tokens": 12, **fields})["choices"]
    return str(choice["text"])


def test_a_seed_gives_its_text_again_and_n_texts_differ(tiny: API) -> None:
    assert text_of(tiny, seed=5) == text_of(tiny, seed=5)
    choices = tiny.ask(TEXT, prompt=PROMPT, max_tokens=12, seed=5, n=3)["choices"]
    assert choices[0]["text"] == text_of(tiny, seed=5)
    assert choices[1]["text"] == text_of(tiny, seed=6)
    assert len({choice["text"] for choice in choices}) == 3


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"min_p": 1}])
def test_these_leave_the_likeliest_token_alone(tiny: API, fields: dict[str, Any]) -> None:
    assert text_of(tiny, seed=1, **fields) == text_of(tiny, temperature=0)


def test_a_completions_log_probabilities_belong_to_its_tokens(tiny: API) -> None:
    answer = tiny.ask(TEXT, prompt=PROMPT, max_tokens=8, temperature=0, logprobs=2)
    (choice,) = answer["choices"]
    told = choice["logprobs"]
    assert "".join(told["tokens"]).strip() == choice["text"].strip()
    assert len(told["token_logprobs"]) == answer["usage"]["completion_tokens"] == 8
    for token, value, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True):
        # Greedily the chosen one is the likeliest.
        assert value == max(top.values()) == top[token]
        assert len(top) == 2
        assert sum(map(math.exp, top.values())) <= 1


def test_a_chats_log_probabilities_stream_with_their_text(tiny: API) -> None:
    fields = {
        "messages": [{"role": "user", "content": "Who are you?"}],
        "max_tokens": 10,
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 4,
    }
    whole = tiny.ask(CHAT, **fields)["choices"][0]["logprobs"]["content"]
    events = tiny.events(CHAT, **fields)
    choices = [event["choices"][0] for event in events]
    streamed = [each for choice in choices if choice["logprobs"] for each in choice["logprobs"]["content"]]
    assert [each["token"] for each in streamed] == [each["token"] for each in whole]
    for each in whole:
        assert bytes(each["bytes"]).decode(errors="replace") == each["token"]
        assert len(each["top_logprobs"]) == 4
        assert each["logprob"] <= each["top_logprobs"][0]["logprob"] + 1e-6


def test_log_probabilities_end_where_a_stop_sequence_does(tiny: API) -> None:
    text = text_of(tiny, temperature=0, max_tokens=20)
    stop = text[8:10]
    answer = tiny.ask(TEXT, prompt=PROMPT, max_tokens=20, temperature=0, logprobs=0, stop=stop)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == text[: text.index(stop)]
    told = "".join(choice["logprobs"]["tokens"])
    assert stop in told
    assert stop not in "".join(choice["logprobs"]["tokens"][:-1])


def test_a_bias_bars_a_token(tiny: API) -> None:
    ids = tiny.ask("/tokenize", prompt=text_of(tiny, temperature=0), add_special_tokens=False)["tokens"]
    biased = text_of(tiny, temperature=0, logit_bias=dict.fromkeys(map(str, ids), -100))
    again = tiny.ask("/tokenize", prompt=biased, add_special_tokens=False)["tokens"]
    assert biased != text_of(tiny, temperature=0)
    assert len(set(ids) & set(again)) <= 1


def test_ignoring_the_end_goes_on_to_max_tokens(tiny: API) -> None:
    asked = [{"role": "user", "content": "Who are you?"}]
    for seed in range(4):
        answer = tiny.ask(CHAT, messages=asked, max_tokens=200, seed=seed, ignore_eos=True)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 200
    # With an end it comes to one: the tiny model was taught when to be silent.
    bias = {"2": 100}
    answer = tiny.ask(CHAT, messages=asked, max_tokens=200, logit_bias=bias)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 1
    answer = tiny.ask(CHAT, messages=asked, max_tokens=9, min_tokens=5, logit_bias=bias)
    assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("key", ["1" * 5000, str(1 << 31), "-1", "x", "\u00b2", ""])
def test_a_logit_bias_of_what_is_no_token_id_is_refused(tiny: API, key: str) -> None:
    error = tiny.refused(TEXT, 400, prompt=PROMPT, logit_bias={key: 1})
    assert (error["param"], error["code"]) == ("logit_bias", "E1005")
    assert len(error["message"]) < 1100
