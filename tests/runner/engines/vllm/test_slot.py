"""A vLLM engine (the stand-in) through real Triton: what only this kind gives, in the slot's tensors."""

import dataclasses
import re
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from engine.machine.gpu import Gpu
from errors.requests import InvalidTensor
from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from runner.stack import served_engine
from tests.runner.api.apis import API, CHAT_TEMPLATE
from tests.runner.engines.vllm.vllm_engines import make_python
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.servers import SLOT, TritonUnderTest

pytestmark = pytest.mark.servers

ASKED = [{"role": "user", "content": "What is machine learning?"}]
PROMPT = {"input_ids": [7, 8], "request_output_len": 4, "runtime_top_k": 1}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[API]:
    folder = tmp_path_factory.mktemp("vllm")
    model = make_paced_model(folder / "model", 0, chat_template=CHAT_TEMPLATE)
    python = make_python(folder / "python", sys.executable)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served_engine, "visible_gpus", lambda: (Gpu(90),))
        api = API(_as_vllm(model), folder, COG_TRITON_ENGINE_PYTHON=python, OPENAI_MODELS="base")
    yield api
    api.close()


@pytest.fixture(scope="module")
def vllm_triton(api: API) -> TritonUnderTest:
    return api.triton


def _as_vllm(model: PacedModel) -> PacedModel:
    """Return the paced model's folder without its manifest: a configuration, a tokenizer and vLLM's
    arguments.
    """
    from engine.tar.manifest import EngineFacts
    from engine.tar.pack import pack
    from engine.tar.unpack import unpack

    source = model.directory.parent / "vllm-source"
    shutil.copytree(
        model.directory, source, ignore=shutil.ignore_patterns("engine_manifest.json", "paced.json")
    )
    (source / "engine_args.json").write_text('{"max_num_seqs": 8}')
    (source / "lora" / "french").mkdir(parents=True)
    (source / "lora" / "french" / "adapter_config.json").write_text("{}")
    tar, directory = source.with_suffix(".tar"), source.with_name("vllm-engine")
    pack(source, EngineFacts(engine_kind="vllm", max_batch_size=8, max_seq_len=4096), tar)
    with tar.open("rb", buffering=0) as stream:
        unpack(stream, directory)
    return dataclasses.replace(model, directory=directory)


def test_an_adapter_is_named_in_the_request(vllm_triton: TritonUnderTest) -> None:
    answer = vllm_triton.post(f"{SLOT}/generate", {**PROMPT, "lora_name": "french"})
    assert answer.json()["output_ids"] == [9, 10, 11, 12]
    refused = vllm_triton.post(f"{SLOT}/generate", {**PROMPT, "lora_name": "german"}).text
    assert "E1103" in refused
    assert "an adapter of this engine (french)" in refused


def test_a_prediction_names_its_adapter(vllm_triton: TritonUnderTest) -> None:
    async def text(lora_name: str | None) -> str:
        request = GenerationRequest("hi", 4, 0, (), Sampling(temperature=0), lora_name=lora_name)
        return "".join([text async for text in vllm_triton.service.generate(request).text()])

    assert vllm_triton.run(text("french")) == vllm_triton.run(text(None)) != ""
    with pytest.raises(InvalidTensor, match=re.escape("an adapter of this engine (french) or empty")):
        vllm_triton.run(text("german"))


def test_an_adapter_is_a_model_of_the_api(api: API) -> None:
    models = api.client.get("/v1/models").json()["data"]
    assert [(model["id"], model["parent"]) for model in models] == [("base", None), ("french", "base")]
    french = api.client.get("/v1/models/french").json()
    assert (french["id"], french["parent"]) == ("french", "base")
    for model in ("base", "french"):
        answer = api.ask("/v1/completions", prompt="hi", model=model, max_tokens=4, temperature=0)
        assert answer["model"] == model
        assert answer["choices"][0]["text"]
    error = api.refused("/v1/completions", 404, prompt="hi", model="german")
    assert error["code"] == "E1603"
    assert "base or french" in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": ASKED, "max_tokens": 4}),
        ("/v1/responses", {"input": ASKED, "max_output_tokens": 4}),
        ("/v1/messages", {"messages": ASKED, "max_tokens": 4}),
    ],
)
def test_every_api_takes_an_adapter_by_name_and_tells_cached_tokens(
    api: API, path: str, body: dict[str, Any]
) -> None:
    first, second = (api.ask(path, **body, model="french", cache_salt=path) for _ in range(2))
    assert first["model"] == "french"
    assert _cached(first["usage"]) == 0 < _cached(second["usage"])
    refused = api.post(path, **body, model="german")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "E1603")


def test_tokens_of_the_prompt_that_the_engine_had_are_in_the_usage(api: API) -> None:
    body = {"prompt": [*range(1, 60)], "max_tokens": 4, "temperature": 0}
    usages = [api.ask("/v1/completions", **body)["usage"] for _ in range(2)]
    events = api.events("/v1/completions", **body, stream_options={"include_usage": True})
    found = [usage["prompt_tokens_details"] for usage in (*usages, events[-1]["usage"])]
    assert found == [{"cached_tokens": 0}, {"cached_tokens": 48}, {"cached_tokens": 48}]
    stopped = api.ask("/v1/completions", **body | {"n": 2, "max_tokens": 9, "stop": "a"})
    assert stopped["usage"]["prompt_tokens_details"] == {"cached_tokens": 48}
    assert 'cog_triton_cached_input_tokens_total{api="openai"}' in api.client.get("/metrics").text


def test_a_request_that_is_not_begun_in_time_gets_429(api: API) -> None:
    body = {"prompt": "hi", "max_tokens": 4000, "ignore_eos": True}
    with api.streaming("/v1/completions", **body, n=8) as events:
        next(events)
        response = api.client.post("/v1/completions", json={**body, "max_queue_ms": 30, "stream": True})
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
        assert response.json()["error"]["code"] == "E1012"
        assert response.json()["error"]["type"] == "rate_limit_error"
    assert api.ask("/v1/completions", prompt="hi", max_queue_ms=(1 << 31) - 1, max_tokens=1)["choices"]


def test_priority_and_salt_reach_the_engine_within_their_bounds(api: API) -> None:
    def param(**field: object) -> str:
        error = api.refused("/v1/completions", 400, prompt="hi", **field)
        return f"{error['code']} {error['param']}"

    assert api.ask("/v1/completions", prompt="hi", max_tokens=1, priority=0, cache_salt="x")["choices"]
    assert param(priority=1) == "E1104 priority"  # The engine's policy does not heed it.
    assert param(priority=-1) == param(priority=1 << 31) == "E1005 priority"
    assert param(cache_salt="x" * 1025) == param(cache_salt="") == "E1005 cache_salt"
    assert param(max_queue_ms=0) == "E1005 max_queue_ms"
    assert api.refused("/v1/responses", 400, input="hi", cache_salt="")["param"] == "cache_salt"


def _cached(usage: dict[str, Any]) -> int:
    names = {"prompt_tokens_details", "input_tokens_details"} & usage.keys()
    return int(usage[names.pop()]["cached_tokens"] if names else usage["cache_read_input_tokens"])
