"""Triton's ensemble, text in and text out, asked as the documents of cog-triton and of others ask it."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from tests.runner.grpc_stream import GrpcStream
from tests.runner.servers import ENSEMBLE, TritonUnderTest

pytestmark = pytest.mark.servers

QUESTION = "What is machine learning?"
RIDDLE = (
    "Water + Fire = Steam\nEarth + Water = Plant\nHuman + Robe = Judge\nCow + Fire = Steak\n"
    "King + Ocean = Poseidon\nComputer + Spy ="
)
SCRIPTS = [
    "日本語のテキスト、漢字。",
    "👨‍👩‍👧 👍🏽 🏳️‍🌈 🇩🇪",
    "Ünïcödé e\u0301 ﷺ ẞ",
    "हिन्दी 한국어 עברית ไทย",
    "\U0010fffd\x00\u200b\ufeff",
]


def text_of(stream: list[dict[str, Any]]) -> str:
    return "".join(event["text_output"] for event in stream)


@pytest.mark.parametrize("prompt", [QUESTION, RIDDLE])
def test_the_documented_curl_request_is_answered(triton: TritonUnderTest, prompt: str) -> None:
    body = json.dumps({"text_input": prompt, "max_tokens": 20, "bad_words": "", "stop_words": ""})
    command = ["curl", "-s", "-X", "POST", f"localhost:{triton.http_port}{ENSEMBLE}/generate", "-d", body]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=300).stdout)
    assert answer["text_output"] == triton.model.expected_text(prompt, 20)
    assert answer["model_name"] == "ensemble"


def test_a_stream_adds_up_to_the_answer(triton: TritonUnderTest) -> None:
    body = {"text_input": QUESTION, "max_tokens": 60, "stream": True}
    stream = triton.stream(f"{ENSEMBLE}/generate_stream", body)
    assert len(stream) > 10
    assert text_of(stream) == triton.model.expected_text(QUESTION, 60)


@pytest.mark.parametrize("prompt", SCRIPTS, ids=range(len(SCRIPTS)))
def test_characters_of_several_tokens_are_never_torn(triton: TritonUnderTest, prompt: str) -> None:
    count = 2 * len(triton.model.ids(prompt))
    body = {"text_input": prompt, "max_tokens": count, "stream": True}
    stream = triton.stream(f"{ENSEMBLE}/generate_stream", body)
    assert text_of(stream) == prompt + prompt
    assert "\ufffd" not in text_of(stream)


def test_streams_at_the_same_time_never_mix(triton: TritonUnderTest) -> None:
    def one(number: int) -> str:
        body = {"text_input": f"漢{number}字👍{number}.", "max_tokens": 70, "stream": True}
        return text_of(triton.stream(f"{ENSEMBLE}/generate_stream", body))

    with ThreadPoolExecutor(24) as pool:
        texts = list(pool.map(one, range(48)))
    assert texts == [triton.model.expected_text(f"漢{number}字👍{number}.", 70) for number in range(48)]


def test_the_streaming_grpc_client_of_others_documents_is_served(triton: TritonUnderTest) -> None:
    """Its tensors as that client makes them: [[...]]-shaped, max_tokens unsigned, blank words."""
    blank = np.array([[""]], object)
    with closing(GrpcStream(triton.grpc_port)) as stream:
        stream.send(
            "ensemble",
            text_input=np.array([[QUESTION]], object),
            max_tokens=np.array([[30]], np.uint32),
            bad_words=blank,
            stop_words=blank,
        )
        text = b"".join(outputs["text_output"][0] for outputs in stream.receive_all()).decode()
    assert text == triton.model.expected_text(QUESTION, 30)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"max_tokens": 0}, "E1103"),
        ({"text_input": ""}, "E1103"),
        ({"text_input": "x" * 5000}, "E1002"),
        ({"temperature": -1.0}, "E1103"),
        ({"beam_width": 2}, "E1104"),
        ({"lora_name": "french"}, "E1104"),
        ({"min_p": 2.0}, "E1103"),
    ],
)
@pytest.mark.parametrize("form", ["generate", "generate_stream"])
def test_a_wrong_request_is_told_its_code_and_the_next_is_served(
    triton: TritonUnderTest, form: str, more: dict[str, object], code: str
) -> None:
    body = {"text_input": QUESTION, "max_tokens": 5, "stream": form == "generate_stream", **more}
    response = triton.post(f"{ENSEMBLE}/{form}", body)
    assert response.status_code == 400
    assert code in response.text
    good = triton.post(f"{ENSEMBLE}/generate", {"text_input": QUESTION, "max_tokens": 5})
    assert good.json()["text_output"] == triton.model.expected_text(QUESTION, 5)


def test_every_optional_input_is_taken(triton: TritonUnderTest) -> None:
    body = {
        "text_input": QUESTION,
        "max_tokens": 5,
        "bad_words": ["spam", "ham"],
        "stop_words": ["never", "ever"],
        "end_id": 50256,
        "pad_id": 50256,
        "top_k": 5,
        "top_p": 0.9,
        "temperature": 0.5,
        "length_penalty": 1.0,
        "repetition_penalty": 1.1,
        "min_length": 1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "random_seed": 2**63,
        "return_log_probs": False,
        "beam_width": 1,
        "stream": False,
    }
    answer = triton.post(f"{ENSEMBLE}/generate", body)
    assert answer.json()["text_output"] == triton.model.expected_text(QUESTION, 5), answer.text
