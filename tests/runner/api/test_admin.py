"""Endpoints for administrators: who may ask, what is refused, and what other clients see of it."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine.adapters import digest_of
from engine.tar.manifest import EngineFacts
from engine.tar.pack import pack
from engine.tar.unpack import unpack
from errors.requests import AdapterRefused
from runner.api.admin.endpoints import allowed_folder
from runner.api.middleware.keys import ADMIN_PATHS
from tests.runner.api.alone import APIAlone
from tests.runner.api.writing_model import WritingModel
from tests.runner.engines.lora_adapters import make_adapter
from tests.runner.engines.vllm.vllm_engines import make_python
from tests.runner.paced_engine import PacedModel, make_tokenizer
from tests.runner.servers import DEADLINE_S, wait_until

ADMIN = {"Authorization": "Bearer root"}


def method_of(path: str) -> str:
    return "GET" if path == "/is_sleeping" else "POST"


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_without_an_admin_key_and_for_other_kinds_all_is_refused(path: str, tmp_path: Path) -> None:
    closed = WritingModel(tmp_path / "closed", API_KEYS="user")
    opened = WritingModel(tmp_path / "opened", API_KEYS="user", ADMIN_API_KEYS="root")
    for model, headers, status, told in [
        (closed, {"Authorization": "Bearer user"}, 403, "E1616"),
        (opened, {"Authorization": "Bearer user"}, 401, "E1617"),
        (opened, {}, 401, "E1617"),
        (opened, ADMIN, 400, "E1013"),
        (opened, {"x-api-key": "root"}, 400, "E1013"),
    ]:
        response = model.request(method_of(path), path, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, told)
    assert "The transformers engine can't" in response.json()["error"]["message"]
    assert "serve an engine of the kind" in response.json()["error"]["message"]
    assert opened.request("GET", "/v1/models", headers=ADMIN).status_code == 401


def test_a_path_leads_into_an_allowed_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    folder, elsewhere = make_adapter(inside / "a", 2), make_adapter(outside / "b", 2)
    (inside / "link").symlink_to(elsewhere)
    linked = make_adapter(inside / "linked", 2)
    (linked / "adapter_config.json").unlink()
    (linked / "adapter_config.json").symlink_to(elsewhere / "adapter_config.json")
    (inside / "circle").symlink_to(inside / "circle")
    for path in (str(folder), "a", "./linked/../a"):
        assert allowed_folder("x", path, (tmp_path / "other", inside)) == folder
    for path in (
        str(elsewhere),
        "../outside/b",
        "link",
        "linked",
        "circle",
        "a\0",
        "a" * 5000,
        "absent",
        "/",
    ):
        with pytest.raises(AdapterRefused, match="inside one of LORA_DIRS"):
            allowed_folder("x", path, (inside,))
    with pytest.raises(AdapterRefused, match="LORA_DIRS is not set"):
        allowed_folder("x", str(folder), ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("admin")


@pytest.fixture(scope="module")
def api(folder: Path) -> Iterator[APIAlone]:
    source, tar = folder / "source", folder / "engine.tar"
    make_adapter(source / "lora" / "french", 3)
    tokenizer = make_tokenizer()
    tokenizer.save(str(source / "tokenizer.json"))
    config = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 4096}
    (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (source / "config.json").write_text(json.dumps(config))
    arguments = {"enable_sleep_mode": True, "enable_lora": True, "max_loras": 4, "max_lora_rank": 16}
    (source / "engine_args.json").write_text(json.dumps(arguments))
    pack(source, EngineFacts(engine_kind="vllm", max_seq_len=4096), tar)
    with tar.open("rb", buffering=0) as stream:
        unpack(stream, folder / "engine")
    server = APIAlone(
        PacedModel(folder / "engine", tar, tokenizer),
        folder,
        COG_TRITON_ENGINE_PYTHON=make_python(folder / "python", sys.executable),
        ADMIN_API_KEYS="root",
        LORA_DIRS=str(make_adapter(folder / "adapters" / "two", 2).parent),
        OPENAI_PROCESSES="2",
        OPENAI_MODELS="model",
    )
    yield server
    server.close()


def post(api: APIAlone, path: str, **body: object) -> httpx.Response:
    """Send a request over a connection of its own: Linux chooses the process."""
    with httpx.Client(base_url=api.url, timeout=DEADLINE_S, headers=ADMIN) as client:
        return client.post(path, json=body)


def models(api: APIAlone) -> dict[str, str | None]:
    found = httpx.get(f"{api.url}/v1/models", timeout=DEADLINE_S).json()["data"]
    return {each["id"]: each.get("digest") for each in found}


def completion(api: APIAlone, model: str, **more: object) -> httpx.Response:
    body = {"model": model, "prompt": [7], "max_tokens": 3, "temperature": 0, **more}
    return post(api, "/v1/completions", **body)


@pytest.mark.slow
def test_all_processes_serve_an_adapter_from_its_loading_to_its_unloading(
    api: APIAlone, folder: Path
) -> None:
    french = digest_of(folder / "engine" / "lora" / "french")
    assert models(api) == {"model": None, "french": french}
    response = post(api, "/v1/load_lora_adapter", lora_name="pirate", lora_path="two")
    assert (response.status_code, response.text) == (
        200,
        "Success: LoRA adapter 'pirate' added successfully.",
    )
    pirate = digest_of(folder / "adapters" / "two")
    for _ in range(12):  # Of two processes, each has answered some.
        assert models(api)["pirate"] == pirate
        assert completion(api, "pirate").status_code == 200
    assert (
        completion(api, "pirate").json()["choices"][0]["text"]
        != completion(api, "model").json()["choices"][0]["text"]
    )
    for name, path, told in (
        ("pirate", "two", "loaded already"),
        ("model", "two", "a model of that name"),
        ("french", "two", "a model of that name"),
        ("x", "../two", "LORA_DIRS"),
    ):
        refused = post(api, "/v1/load_lora_adapter", lora_name=name, lora_path=path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "E1014")
        assert told in refused.json()["error"]["message"]
    response = post(api, "/v1/unload_lora_adapter", lora_name="pirate")
    assert response.text == "Success: LoRA adapter 'pirate' removed successfully."
    for _ in range(12):
        assert models(api).keys() == {"model", "french"}
        assert completion(api, "pirate").status_code == 404
    assert post(api, "/v1/unload_lora_adapter", lora_name="pirate").status_code == 404
    assert post(api, "/v1/unload_lora_adapter", lora_name="french").status_code == 400


@pytest.mark.slow
def test_an_engine_that_sleeps_is_not_ready_and_refuses_requests(api: APIAlone) -> None:
    for query, name in (("level=3", "level"), ("mode=keep", "mode")):
        refused = post(api, f"/sleep?{query}")
        assert refused.json()["error"]["param"] == name
    running: list[httpx.Response] = []
    long: dict[str, object] = {"max_tokens": 4000, "ignore_eos": True}
    asking = threading.Thread(target=lambda: running.append(completion(api, "model", **long)))
    asking.start()
    while (
        "cog_triton_slot_running_requests 1" not in (text := httpx.get(f"{api.url}/metrics").text)
        and asking.is_alive()
    ):
        assert text
    assert post(api, "/sleep?level=2&mode=wait").json() == {"status": "sleeping", "level": 2}
    asking.join()
    assert running[0].status_code == 200
    for _ in range(6):
        ready = httpx.get(f"{api.url}/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "asleep"})
        refused = completion(api, "model")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "E2114")
        assert refused.headers["retry-after"]
    with httpx.Client(base_url=api.url, headers=ADMIN) as client:
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert client.post("/wake_up?tags=weights").json() == {"status": "sleeping", "tags": ["weights"]}
        assert client.post("/wake_up").json() == {"status": "awake", "tags": None}
        assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    assert httpx.get(f"{api.url}/ready").status_code == 200
    assert completion(api, "model").status_code == 200


@pytest.mark.slow
def test_an_engine_that_dies_asleep_is_awake_when_it_is_started_again(api: APIAlone) -> None:
    """Until then, no client is told to wake it."""
    assert post(api, "/sleep").status_code == 200
    assert completion(api, "model").json()["error"]["code"] == "E2114"
    assert api.engine.pid is not None
    os.kill(api.engine.pid, signal.SIGKILL)
    wait_until(lambda: completion(api, "model").json()["error"]["code"] == "E2107")
    wait_until(lambda: completion(api, "model").status_code == 200)
