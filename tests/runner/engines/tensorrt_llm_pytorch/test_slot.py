"""An engine of the LLM API (the stand-in) that the builder made, served through real Triton and the API."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from builder.build import build
from engine.machine.gpu import Gpu
from engine.tar.unpack import unpack
from runner.stack import served_engine
from tests.runner.api.apis import API, CHAT_TEMPLATE
from tests.runner.engines.tensorrt_llm_pytorch.llm_api_engines import LIBRARY
from tests.runner.engines.vllm.vllm_engines import make_python
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.servers import SLOT

pytestmark = pytest.mark.servers
OUTPUT = {"input_ids": [7, 8], "request_output_len": 4, "runtime_top_k": 1}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[API]:
    folder = tmp_path_factory.mktemp("llm-api")
    model = make_paced_model(folder / "model", 0, chat_template=CHAT_TEMPLATE)
    python = make_python(folder / "python", sys.executable, LIBRARY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served_engine, "visible_gpus", lambda: (Gpu(90),))
        api = API(_built(model, folder), folder, COG_TRITON_ENGINE_PYTHON=python, OPENAI_MODELS="base")
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
    lora = {"french": {"model_path": "french"}}
    (folder / "config.yaml").write_text(yaml.safe_dump({**keys, "lora": lora}))
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


def test_iterations_are_told_by_nvidias_names(api: API) -> None:
    with api.streaming("/v1/completions", prompt="hi", max_tokens=2000, ignore_eos=True) as events:
        next(events)
        text = api.client.get("/metrics").text
    assert 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"' in text
