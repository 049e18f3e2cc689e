"""Serve a known model by vLLM on this machine's GPU with each feature, and compare every answer.

    .venv/bin/python -m tests.gpu.features --engine-python .venv-vllm/bin/python --work .cache/features [NAME]

NAME chooses a feature, and may be repeated; without it, all are tried. Exit
status 1 if one did not start, or answered anything but the known text.
"""

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import urllib3
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from engine.machine.root import SOURCE_ROOT
from perf.__main__ import exit_status
from perf.peers.engine import Engine, built_engine
from perf.peers.servers import Endpoint, resident
from perf.servers import MODEL
from perf.table import table
from tests.gpu.nodes import gpus_used_mib, parser_of, positive
from tests.runner.api.image_bodies import CHAT, MESSAGES, RESPONSES, image_body, png

_ADMIN = "admin"
_TOKENS = 96
_TIMEOUT_S = 300.0
_REFERENCES = ("text", "embedding", "images")
"""Models of ``reference``, whose tokens are not known."""
_INPUTS = [list(range(300, 300 + count)) for count in (1, 2, 17, 64, 150, 199)]
_BASE: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": 2048,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "gpu_memory_utilization": 0.1,
    "kv_cache_memory_bytes": 2 << 30,
}


@dataclass(frozen=True)
class Served:
    """An engine that is ready, served by the OpenAI-compatible API."""

    endpoint: Endpoint
    tokenizer: Tokenizer
    folder: Path

    def post(self, path: str, body: Mapping[str, object] | None = None) -> urllib3.BaseHTTPResponse:
        return self._request("POST", path, json=body)

    def get(self, path: str) -> urllib3.BaseHTTPResponse:
        return self._request("GET", path)

    def _request(self, method: str, path: str, **options: Any) -> urllib3.BaseHTTPResponse:
        headers = {"Authorization": f"Bearer {_ADMIN}"}
        url = f"{self.endpoint.url}{path}"
        return urllib3.request(method, url, headers=headers, timeout=_TIMEOUT_S, retries=False, **options)

    def complete(self, ids: list[int], **fields: object) -> dict[str, Any]:
        body = {"model": MODEL, "prompt": ids, "max_tokens": _TOKENS, "temperature": 0, "ignore_eos": True}
        response = self.post("/v1/completions", body | fields)
        assert response.status == 200, response.data
        found: dict[str, Any] = response.json()
        return found

    def known(self, ids: list[int], tokens: int = _TOKENS) -> str:
        answer = self.endpoint.engine.answer(ids, tokens)
        assert answer is not None
        text: str = self.tokenizer.decode(answer)
        return text


@dataclass(frozen=True)
class Feature:
    """``arguments`` are vLLM's; ``check`` returns what it saw, or raises AssertionError."""

    arguments: Mapping[str, object]
    check: Callable[[Served], str] = lambda served: ""
    model: str = "plain"
    """A known model of ``known_model``, or one of ``reference``, whose answers transformers computes."""
    gpus: int = 1


def _prefix(served: Served) -> str:
    ids = [300 + number % 200 for number in range(1200)]
    usage = [served.complete(ids)["usage"] for _ in range(2)]
    cached = [(each.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for each in usage]
    assert cached[1] >= 1100, cached
    return f"{cached[1]} of 1,200 tokens cached the second time"


def _speculation(served: Served) -> str:
    # The answer repeats what the prompt has.
    ids = [*range(400, 520), 400]
    answer = served.complete(ids)
    assert answer["choices"][0]["text"] == served.known(ids)
    details = answer["usage"].get("completion_tokens_details") or {}
    accepted = details.get("accepted_prediction_tokens", 0)
    assert accepted, answer["usage"]
    return f"{accepted} of {_TOKENS} tokens accepted"


def _guide(served: Served) -> str:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    body = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    found = served.complete([400, 401], max_tokens=40, ignore_eos=False, response_format=body)
    choice = found["choices"][0]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["text"])["a"], int), choice
    else:
        assert choice["text"].lstrip().startswith("{"), choice
    return repr(choice["text"][:24])


def _log_probabilities(served: Served) -> str:
    ids = [400, 401]
    choice = served.complete(ids, logprobs=2, max_tokens=8)["choices"][0]
    values = choice["logprobs"]["token_logprobs"]
    assert len(values) == 8, choice
    assert all(-0.1 < value <= 0 for value in values), choice
    return "8 values"


def _log_probabilities_of_transformers(served: Served) -> str:
    errors: list[float] = []
    for ids, expected in zip(_INPUTS, _reference(served, "log-probabilities"), strict=True):
        choice = served.complete(ids, logprobs=5, max_tokens=1)["choices"][0]
        found = sorted(choice["logprobs"]["top_logprobs"][0].values(), reverse=True)
        errors += [abs(one - other) for one, other in zip(found, expected, strict=False)]
    assert max(errors) < 0.1, errors
    return f"{len(errors)} values; difference to float32: mean {np.mean(errors):.4f}, most {max(errors):.4f}"


def _embeddings(served: Served) -> str:
    answer = served.post("/v1/embeddings", {"model": MODEL, "input": _INPUTS})
    assert answer.status == 200, answer.data
    found = [each["embedding"] for each in answer.json()["data"]]
    expected = _reference(served, "vectors")
    cosines = [float(np.dot(*each)) for each in zip(found, expected, strict=True)]
    assert min(cosines) > 0.999, cosines
    refused = served.post("/v1/completions", {"model": MODEL, "prompt": [400]})
    assert b"E1011" in refused.data, refused.data
    return f"{len(found)} inputs; least cosine to float32's vector {min(cosines):.5f}; E1011 for text"


def _images(served: Served) -> str:
    images = [png(50, 40, shade) for shade in (10, 10, 240)]
    urls = ["data:image/png;base64," + base64.b64encode(each).decode() for each in images]
    plain = served.complete([10, 11])["choices"][0]["text"]
    for path, limit in ((CHAT, "max_tokens"), (RESPONSES, "max_output_tokens"), (MESSAGES, "max_tokens")):
        own = {"model": MODEL, "temperature": 0, limit: 24}
        answers = [served.post(path, image_body(path, url) | own) for url in urls]
        assert all(each.status == 200 for each in answers), [each.data for each in answers]
        texts = [_text(each.json()) for each in answers]
        assert texts[0] == texts[1] != texts[2], (path, texts)
    assert served.complete([10, 11])["choices"][0]["text"] == plain
    return f"three APIs: the same image has the same answer, another one another; {texts[0][:8]!r}"


def _no_images(served: Served) -> str:
    url = "data:image/png;base64," + base64.b64encode(png(50, 40, 10)).decode()
    for path in (CHAT, RESPONSES, MESSAGES):
        refused = served.post(path, image_body(path, url) | {"model": MODEL})
        assert b"E1016" in refused.data, refused.data
    return "images are refused with E1016 by three APIs"


def _text(answer: dict[str, Any]) -> str:
    """Return the text of a whole answer of one of the three APIs."""
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    content = answer["output"][0]["content"] if "output" in answer else answer["content"]
    return str(content[0]["text"])


def _reference(served: Served, action: str) -> list[list[float]]:
    """Return what transformers computes of each input with the weights, in float32."""
    engine = served.endpoint.engine
    command = [engine.python, "-m", "tests.gpu.reference", action, str(engine.folder), json.dumps(_INPUTS)]
    found = subprocess.run(command, cwd=SOURCE_ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return list(json.loads(found))


def _lora(served: Served) -> str:
    folder = str(_lora_folder(served.endpoint.engine.folder, served.folder))
    loaded = served.post("/v1/load_lora_adapter", {"lora_name": "pirate", "lora_path": folder})
    assert loaded.status == 200, loaded.data
    ids = [400, 401]
    # The known token's own is 0.
    own, other = (
        served.complete(ids, logprobs=5, max_tokens=4, model=name)["choices"][0]["logprobs"]["top_logprobs"]
        for name in (MODEL, "pirate")
    )
    assert own != other, own
    assert served.post("/v1/unload_lora_adapter", {"lora_name": "pirate"}).status == 200
    body = {"model": "pirate", "prompt": ids, "max_tokens": 1}
    assert served.post("/v1/completions", body).status == 404
    return "another model's log probabilities; 404 once it is unloaded"


def _sleep(served: Served) -> str:
    before = gpus_used_mib()[0]
    assert served.post("/sleep?level=1").status == 200
    asleep = gpus_used_mib()[0]
    assert served.get("/is_sleeping").json() == {"is_sleeping": True}
    refused = served.post("/v1/completions", {"model": MODEL, "prompt": [400], "max_tokens": 1})
    assert refused.status == 503, refused.data
    ready = served.get("/ready").status
    assert ready == 503, ready
    start_s = time.monotonic()
    assert served.post("/wake_up").status == 200
    took_s = time.monotonic() - start_s
    ids = [400, 401]
    assert served.complete(ids)["choices"][0]["text"] == served.known(ids)
    return f"GPU memory of all {before} to {asleep} MiB, awake after {took_s:.1f} s"


def _replicas(served: Served) -> str:
    used = gpus_used_mib()[:2]
    assert min(used) > 2000, used
    return f"{used[0]} and {used[1]} MiB in use on the GPUs"


_EAGER = {"enforce_eager": True}
_NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
_DRAFT = {"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": 3}
FEATURES = {
    "CUDA graphs, torch.compile": Feature({}),
    "eager": Feature(_EAGER, _no_images),
    "prefix caching": Feature({**_EAGER, "enable_prefix_caching": True}, _prefix),
    "chunked prefill": Feature({**_EAGER, "max_num_batched_tokens": 128, "enable_chunked_prefill": True}),
    "n-gram speculation": Feature({**_EAGER, "speculative_config": _NGRAM}, _speculation),
    "draft model": Feature({**_EAGER, "speculative_config": _DRAFT}, _speculation),
    "FP8 KV cache": Feature({**_EAGER, "kv_cache_dtype": "fp8"}),
    "FP8 weights": Feature({**_EAGER, "quantization": "fp8"}),
    "GPTQ": Feature({**_EAGER, "dtype": "float16"}, model="gptq"),
    "AWQ": Feature({**_EAGER, "dtype": "float16"}, model="awq"),
    "guides": Feature(_EAGER, _guide),
    "log probabilities": Feature(_EAGER, _log_probabilities),
    "LoRA while serving": Feature({**_EAGER, "enable_lora": True, "max_loras": 2, "max_lora_rank": 8}, _lora),
    "two replicas": Feature({**_EAGER, "data_parallel_size": 2}, _replicas, gpus=2),
    "expert parallelism": Feature(
        {**_EAGER, "data_parallel_size": 2, "enable_expert_parallel": True}, _replicas, "moe", gpus=2
    ),
    "beside transformers": Feature(_EAGER, _log_probabilities_of_transformers, "text"),
    "embeddings": Feature(_EAGER, _embeddings, "embedding"),
    "images": Feature({**_EAGER, "max_model_len": 1024}, _images, "images"),
    "sleep and wake": Feature({**_EAGER, "enable_sleep_mode": True}, _sleep),
}


def main() -> int:
    parser = parser_of(__doc__)
    names_help = f"some of {', '.join(FEATURES)}"
    parser.add_argument("names", nargs="*", choices=[*FEATURES, []], metavar="NAME", help=names_help)
    parser.add_argument("--at-once", type=positive, default=4, help="engines that run at the same time")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    gpus = len(gpus_used_mib())
    names = options.names or [name for name, each in FEATURES.items() if each.gpus <= gpus]
    models = {each: options.work / f"model-{each}" for each in {FEATURES[name].model for name in names}}
    if "draft model" in names:
        models["draft"] = options.work / "model-draft"
    for name, folder in models.items():
        if not (folder / "tokenizer_config.json").exists():
            _make(options, name, folder)
    rows = []
    with ThreadPoolExecutor(options.at_once) as threads:
        runs = {name: threads.submit(_run, name, options, models) for name in names}
        for name, run in runs.items():
            try:
                rows.append([name, *run.result()])
            except Exception as error:  # noqa: BLE001 - the others are still told
                traceback.print_exc(limit=-3)
                rows.append([name, "FAILED", "", "", f"{type(error).__name__}: {str(error)[:300]}"])
            print(rows[-1], file=sys.stderr, flush=True)
    print(table(["feature", "exact", "READY after, s", "tokens/s", "seen"], rows))
    return int(any(row[1] == "FAILED" for row in rows))


def _make(options: argparse.Namespace, name: str, folder: Path) -> None:
    if name in _REFERENCES:
        command = ["tests.gpu.reference", "make", str(folder), name]
    else:
        shape = {"draft": "tiny", "moe": "moe"}.get(name, options.shape)
        command = [
            "tests.standins.known_model",
            str(folder),
            shape,
            *([name] if name in ("gptq", "awq") else []),
        ]
    subprocess.run([options.engine_python, "-m", *command], cwd=SOURCE_ROOT, check=True)


def _run(name: str, options: argparse.Namespace, models: Mapping[str, Path]) -> list[str]:
    feature = FEATURES[name]
    folder = options.work / name.replace(" ", "-").replace(",", "")
    folder.mkdir(exist_ok=True)
    draft = str(options.work / "model-draft")
    arguments = json.loads(json.dumps({**_BASE, **feature.arguments}).replace("DRAFT", draft))
    tokenizer = Tokenizer.from_file(str(models[feature.model] / "tokenizer.json"))
    model = folder / "model"  # A build config names files of its own folder.
    if not model.exists():
        shutil.copytree(models[feature.model], model, copy_function=os.link)
    opened = built_engine(folder, model, arguments)
    variables = {"ADMIN_API_KEYS": _ADMIN, "LORA_DIRS": str(folder), "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    cache = folder / "cache" / "engine_cache"
    engine = Engine(opened, "vllm", options.engine_python, cache, tokenizer.get_vocab_size(), variables)
    start_s = time.monotonic()
    with ExitStack() as opened_servers:
        endpoints = opened_servers.enter_context(resident(["api-1"], {"": engine}, folder))
        served = Served(endpoints["api-1"], tokenizer, folder)
        ready_s = time.monotonic() - start_s
        compared = ["", f"{ready_s:.0f}", ""]
        if feature.model not in _REFERENCES:
            exact, speed = _compare(served)
            compared = [f"{exact} of 64", f"{ready_s:.0f}", f"{speed:,.0f}"]
        return [*compared, feature.check(served)]


def _compare(served: Served) -> tuple[int, float]:
    """Send 64 prompts at once, twice; return how many of the second 64 answers are the known ones."""
    prompts = [[300 + number * 7, *range(400 + number, 500 + number)] for number in range(64)]
    with ThreadPoolExecutor(64) as threads:
        for _ in range(2):
            start_s = time.monotonic()
            answers = list(threads.map(served.complete, prompts))
            took_s = time.monotonic() - start_s
    texts = [each["choices"][0]["text"] for each in answers]
    exact = sum(text == served.known(ids) for text, ids in zip(texts, prompts, strict=True))
    assert exact == len(prompts), f"{exact} of {len(prompts)} exact"
    return exact, len(prompts) * _TOKENS / took_s


def _lora_folder(engine: Path, served_folder: Path) -> Path:
    """Make an adapter of random weights in a folder of its own beside the engine's cache."""
    config = json.loads((engine / "config.json").read_text())
    hidden, random = config["hidden_size"], np.random.default_rng(0)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        start = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_"
        tensors[f"{start}A.weight"] = random.normal(0, 0.05, (8, hidden)).astype(np.float16)
        tensors[f"{start}B.weight"] = random.normal(0, 0.05, (hidden, 8)).astype(np.float16)
    folder = served_folder / "adapter"
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
