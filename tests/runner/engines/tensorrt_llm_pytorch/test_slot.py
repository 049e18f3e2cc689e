"""An engine of the LLM API (the stand-in) that the builder made, served through real Triton and the API."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from builder.build import build
from engine.machine.gpu import Gpu
from engine.tar.unpack import unpack
from runner.stack import served_engine
from tests.runner.api.apis import API, CHAT_TEMPLATE
from tests.runner.engines.lora_adapters import make_adapter
from tests.runner.engines.tensorrt_llm_pytorch.llm_api_engines import LIBRARY
from tests.runner.engines.vllm.vllm_engines import make_python
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.servers import SLOT

pytestmark = pytest.mark.servers
SCHEMA = {"type": "array", "uniqueItems": False}
FORMAT = {"name": "list", "schema": SCHEMA}
OUTPUT = {"input_ids": [7, 8], "request_output_len": 4, "runtime_top_k": 1}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the folder with what the library gets."""
    return tmp_path_factory.mktemp("record")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, record: Path) -> Iterator[API]:
    folder = tmp_path_factory.mktemp("llm-api")
    model = make_paced_model(folder / "model", 0, chat_template=CHAT_TEMPLATE)
    python = make_python(folder / "python", sys.executable, LIBRARY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLM_API_RECORD", str(record))
        patch.setattr(served_engine, "visible_gpus", lambda: (Gpu(90),))
        environment = {
            "COG_TRITON_ENGINE_PYTHON": python,
            "OPENAI_MODELS": "base",
            "ADMIN_API_KEYS": "root",
            "LORA_DIRS": str(make_adapter(folder / "adapters" / "two", 2, target_modules=["q_proj"]).parent),
        }
        api = API(_built(model, folder), folder, **environment)
    yield api
    api.close()


def _built(model: PacedModel, folder: Path) -> PacedModel:
    """Return the engine that is built of the paced model's files, with weights and an adapter."""
    source, adapter = folder / "source", folder / "french"
    shutil.copytree(
        model.directory, source, ignore=shutil.ignore_patterns("engine_manifest.json", "paced.json")
    )
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    weights = b"\x02\0\0\0\0\0\0\0{}"
    (source / "model.safetensors").write_bytes(weights)
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 8, "target_modules": ["q_proj"]}))
    (adapter / "adapter_model.safetensors").write_bytes(weights)
    keys = {"engine": "tensorrt_llm", "backend": "pytorch", "model_path": "source", "max_batch_size": 8}
    arguments = {"guided_decoding_backend": "xgrammar", "lora_config": {"max_cpu_loras": 2}}
    lora = {"french": {"model_path": "french"}}
    (folder / "config.yaml").write_text(yaml.safe_dump({**keys, "lora": lora, "llm_args": arguments}))
    build(folder / "config.yaml", folder / "engine.tar", report=lambda line: None)
    with (folder / "engine.tar").open("rb", buffering=0) as stream:
        unpack(stream, folder / "engine")
    return dataclasses.replace(model, directory=folder / "engine")


def test_tokens_come_through_the_slot_and_what_it_lacks_is_refused(api: API) -> None:
    answer = api.triton.post(f"{SLOT}/generate", {**OUTPUT, "lora_name": "french"})
    assert answer.json()["output_ids"] == [7, 8, 7, 8]
    assert (
        "an adapter of this engine (french)"
        in api.triton.post(f"{SLOT}/generate", {**OUTPUT, "lora_name": "german"}).text
    )
    assert "E1104" in api.triton.post(f"{SLOT}/generate", {**OUTPUT, "beam_width": 2}).text


def test_the_api_has_log_probabilities_and_the_adapter_as_a_model(api: API) -> None:
    body = {"prompt": [*range(20, 30)], "max_tokens": 4, "temperature": 0, "cache_salt": "mine"}
    answer = api.ask("/v1/completions", **body, model="french", logprobs=1)
    choice = answer["choices"][0]
    assert (answer["model"], choice["finish_reason"]) == ("french", "length")
    assert choice["logprobs"]["token_logprobs"] == pytest.approx([-0.2877] * 4, abs=1e-3)
    refused = api.refused("/v1/completions", 400, **body, priority=1)
    assert "scheduling_policy: priority" in refused["message"]


def test_an_adapter_is_loaded_and_unloaded_while_it_serves(api: API) -> None:
    def order(action: str, **body: str) -> httpx.Response:
        path = f"/v1/{action}_lora_adapter"
        return api.client.post(path, headers={"Authorization": "Bearer root"}, json=body)

    body: dict[str, Any] = {"prompt": [*range(20, 30)], "max_tokens": 2, "temperature": 0}
    loaded = order("load", lora_name="two", lora_path="two")
    assert loaded.status_code == 200, loaded.text
    higher = api.ask("/v1/completions", **{**body, "prompt": [*range(22, 32)]})["choices"][0]["text"]
    assert api.ask("/v1/completions", **body, model="two")["choices"][0]["text"] == higher
    refused = order("load", lora_name="more", lora_path="two")
    assert "raise max_cpu_loras in llm_args.lora_config" in refused.text
    assert order("unload", lora_name="two").status_code == 200
    assert api.refused("/v1/completions", 404, **body, model="two")


def test_usage_has_the_tokens_that_were_cached(api: API) -> None:
    body = {"prompt": [*range(40, 110)], "max_tokens": 1}
    counts = [
        api.ask("/v1/completions", **body)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for _ in range(2)
    ]
    assert counts == [0, 69]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": FORMAT}}),
        ("/v1/responses", {"text": {"format": {**FORMAT, "type": "json_schema"}}}),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ],
)
def test_structured_outputs_of_all_apis_reach_the_library(
    api: API, path: str, body: dict[str, Any], record: Path
) -> None:
    is_responses = path == "/v1/responses"
    names = ("input", "max_output_tokens") if is_responses else ("messages", "max_tokens")
    asked = dict(zip(names, ([{"role": "user", "content": "hi"}], 20), strict=True))
    api.ask(path, **asked, **body, model="base")
    last = max(record.glob("request-*.json"), key=lambda each: int(each.stem.partition("-")[2]))
    guided = json.loads(last.read_text())["sampling_params"]["guided_decoding"]
    assert json.loads(guided["json"]) == SCHEMA


def test_forced_calls_of_tools_are_refused(api: API) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = [{"role": "user", "content": "hi"}]
    body = {"messages": asked, "tools": [tool], "tool_choice": "required", "model": "base"}
    assert api.refused("/v1/chat/completions", 400, **body)["code"] == "E1602"


def test_iterations_are_told_by_nvidias_names(api: API) -> None:
    with api.streaming("/v1/completions", prompt="hi", max_tokens=2000, ignore_eos=True) as events:
        next(events)
        text = api.client.get("/metrics").text
    assert 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"' in text
