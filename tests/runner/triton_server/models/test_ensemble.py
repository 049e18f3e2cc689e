"""Triton's ensemble, text in and text out, asked as the documents of cog-triton and of others ask it."""

from __future__ import annotations

import json
import queue
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

from tests.runner.servers import ENSEMBLE, HOST, TritonUnderTest

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


def test_a_character_that_the_length_cuts_is_shown_as_it_would_be_decoded_whole(
    triton: TritonUnderTest,
) -> None:
    body = {"text_input": "👍", "max_tokens": 6, "stream": True}
    assert text_of(triton.stream(f"{ENSEMBLE}/generate_stream", body)) == triton.model.expected_text("👍", 6)


def test_streams_at_the_same_time_never_mix(triton: TritonUnderTest) -> None:
    def one(number: int) -> str:
        body = {"text_input": f"漢{number}字👍{number}.", "max_tokens": 70, "stream": True}
        return text_of(triton.stream(f"{ENSEMBLE}/generate_stream", body))

    with ThreadPoolExecutor(24) as pool:
        texts = list(pool.map(one, range(48)))
    assert texts == [triton.model.expected_text(f"漢{number}字👍{number}.", 70) for number in range(48)]


def test_the_streaming_grpc_client_of_others_documents_is_served(triton: TritonUnderTest) -> None:
    """Its tensors as that client makes them: [[...]]-shaped, max_tokens unsigned, blank words."""
    text = np.array([[QUESTION]]).astype(object)
    inputs = [
        prepare("text_input", text),
        prepare("max_tokens", np.ones_like([[QUESTION]]).astype(np.uint32) * 30),
        prepare("bad_words", np.array([[""]], dtype=object)),
        prepare("stop_words", np.array([[""]], dtype=object)),
    ]
    client = grpcclient.InferenceServerClient(url=f"{HOST}:{triton.grpc_port}")
    completed: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=partial(receive, completed))
    client.async_stream_infer("ensemble", inputs)
    client.stop_stream()
    client.close()
    outputs = [completed.get_nowait() for _ in range(completed.qsize())]
    assert b"".join(output[0] for output in outputs).decode() == triton.model.expected_text(QUESTION, 30)


def prepare(name: str, array: npt.NDArray[Any]) -> grpcclient.InferInput:
    tensor = grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


def receive(completed: queue.Queue[Any], result: Any, error: Any) -> None:
    completed.put(error or result.as_numpy("text_output"))


def test_several_texts_in_one_request_are_all_answered(triton: TritonUnderTest) -> None:
    prompts = ["What is", "Cow + Fire", "日本"]
    stream: queue.Queue[Any] = queue.Queue()
    client = grpcclient.InferenceServerClient(url=f"{HOST}:{triton.grpc_port}")
    client.start_stream(callback=partial(receive, stream))
    texts = np.array([[prompt] for prompt in prompts], dtype=object)
    counts = np.array([[12]] * 3, np.uint32)
    client.async_stream_infer("ensemble", [prepare("text_input", texts), prepare("max_tokens", counts)])
    client.stop_stream()
    client.close()
    answers = [stream.get_nowait() for _ in range(stream.qsize())]
    assert {bytes(answer[0]).decode() for answer in answers} == {
        triton.model.expected_text(prompt, 12) for prompt in prompts
    }


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"max_tokens": 0}, "E1103"),
        ({"text_input": ""}, "E1103"),
        ({"text_input": "x" * 5000}, "E1002"),
        ({"temperature": -1.0}, "E1103"),
        ({"beam_width": 2}, "E1104"),
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
