"""OpenAI's own Python package against the runner's API."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel, Field

from tests.clients.conftest import CRASH_SEED, MOST_REQUESTS, Runner

pytestmark = pytest.mark.servers

ASKED = [{"role": "user", "content": "What is machine learning?"}]
PROMPT = "Once upon a time"
LONG = {"max_tokens": 900, "extra_body": {"ignore_eos": True}}
"""Most of what the model has room for: seconds."""


class City(BaseModel):
    name: str = Field(max_length=20)
    """Bounded, as a model as tiny as this one does not end a text by itself."""
    is_large: bool


@pytest.fixture(scope="module")
def client(runner: Runner) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{runner.openai_url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def text_of(chunks: Iterable[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def wait_until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_stream_has_the_same_text_and_usage_as_a_whole_answer(client: openai.OpenAI, model: str) -> None:
    asked = {"model": model, "messages": ASKED, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert whole.choices[0].message.content
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == [whole.choices[0].finish_reason]


async def ask_async(client: openai.AsyncOpenAI, model: str) -> tuple[str, str]:
    asked = {"model": model, "messages": ASKED, "max_tokens": 12, "temperature": 0}
    whole = await client.chat.completions.create(**asked)
    chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
    return whole.choices[0].message.content or "", text_of(chunks)


async def test_the_async_client_gets_what_the_sync_one_gets(
    client: openai.OpenAI, model: str, runner: Runner
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{runner.openai_url}/v1", api_key="none") as asynchronous:
        answers = await asyncio.gather(*[ask_async(asynchronous, model) for _ in range(3)])
    expected = client.chat.completions.create(model=model, messages=ASKED, max_tokens=12, temperature=0)
    text = expected.choices[0].message.content
    assert answers == [(text, text)] * 3


def test_completions_take_lists_and_give_n_texts_with_log_probabilities(
    client: openai.OpenAI, model: str
) -> None:
    answer = client.completions.create(
        model=model, prompt=[PROMPT, "Water"], n=2, seed=5, max_tokens=4, logprobs=2,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert choice.finish_reason == "length"
        assert len(choice.logprobs.token_logprobs or []) == 4
        assert all(value <= 0 for value in choice.logprobs.token_logprobs or [])
    assert answer.usage.completion_tokens == 16


def test_a_pydantic_model_is_parsed_from_a_stream(client: openai.OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model, messages=ASKED, response_format=City, max_tokens=300, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(answer.choices[0].message.parsed, City)


def test_a_refusal_is_the_exception_for_it_with_code_and_field(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=ASKED, temperature=9)
    assert (refused.value.code, refused.value.param) == ("E1005", "temperature")
    with pytest.raises(openai.BadRequestError) as unknown:
        client.chat.completions.create(model=model, messages=ASKED, extra_body={"audio": {"voice": "ash"}})
    assert (unknown.value.code, unknown.value.param) == ("E1601", "audio")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="no-such-model", messages=ASKED)
    assert (missing.value.code, missing.value.param) == ("E1603", "model")
    with pytest.raises(openai.NotFoundError) as other:
        client.moderations.create(model=model, input="Hello")
    assert other.value.code == "E1605"


def patient_client(client: openai.OpenAI) -> tuple[openai.OpenAI, list[int]]:
    """Return a client that retries often, and the statuses of the responses it gets."""
    statuses: list[int] = []
    noting = httpx2.Client(event_hooks={"response": [lambda response: statuses.append(response.status_code)]})
    return client.with_options(max_retries=60, http_client=noting), statuses


def test_a_full_server_is_429_and_the_clients_own_retry_gets_through(
    client: openai.OpenAI, model: str, runner: Runner
) -> None:
    stream = client.chat.completions.create(model=model, messages=ASKED, stream=True, n=MOST_REQUESTS, **LONG)
    next(iter(stream))
    with pytest.raises(openai.RateLimitError) as full:
        client.completions.create(model=model, prompt=PROMPT)
    assert full.value.code == "E1607"
    assert full.value.response.headers["retry-after"] == "1"
    patient, statuses = patient_client(client)
    release = threading.Thread(target=lambda: (wait_until(lambda: 429 in statuses), stream.close()))
    release.start()
    answer = patient.completions.create(model=model, prompt=PROMPT, max_tokens=2)
    release.join()
    assert answer.choices[0].text
    assert (statuses[0], statuses[-1]) == (429, 200)


def test_503_while_the_engine_restarts_and_the_clients_own_retry_gets_through(scripted: Runner) -> None:
    client = openai.OpenAI(base_url=f"{scripted.openai_url}/v1", api_key="none", max_retries=0)
    asked = {"model": scripted.model(), "prompt": PROMPT, "max_tokens": 8, "temperature": 1}
    with pytest.raises(openai.InternalServerError) as crashed:
        client.completions.create(**asked, seed=CRASH_SEED)
    assert (crashed.value.status_code, crashed.value.response.headers["retry-after"]) == (503, "2")
    patient, statuses = patient_client(client)
    assert patient.completions.create(**asked).choices[0].text
    assert set(statuses[:-1]) == {503}
    assert statuses[-1] == 200
