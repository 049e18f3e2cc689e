"""The builder behind the real Cog server: a config goes in, an engine.tar comes out, a token never."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from engine.inspect import verify
from engine.tar.manifest import Manifest
from tests.builder import tiny_model
from tests.builder.cog_server import CogServer
from tests.builder.conftest import MODEL_ID
from tests.builder.hub_server import HubServer, Repository
from tests.runner.servers import DEADLINE_S

pytestmark = pytest.mark.servers

TOKEN_IN_YAML = "hf_plantedInYaml0123456789"
TOKEN_IN_INPUT = "hf_planted-in-input"


webhooks: queue.Queue[dict[str, Any]] = queue.Queue()


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves configs, and takes Cog's webhooks."""

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        webhooks.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("src")


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    server = HubServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def server(folder: Path, hub: HubServer) -> Iterator[CogServer]:
    cog = CogServer(
        folder,
        {
            "HF_ENDPOINT": hub.url,
            "COG_TRITON_CACHE": str(folder / "cache"),
            "HF_HOME": str(folder / "hf"),
            "TMPDIR": str(folder),
        },
    )
    yield cog
    cog.close()


@pytest.fixture(scope="module")
def serve(folder: Path) -> Iterator[Callable[..., str]]:
    """Write a config and serve it on loopback: its keys -> its URL."""
    handler = functools.partial(_Handler, directory=str(folder))
    http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=http_server.serve_forever, args=(0.01,), daemon=True).start()

    def serve(**keys: object) -> str:
        (folder / "config.yaml").write_text(yaml.safe_dump(keys))
        return f"http://127.0.0.1:{http_server.server_port}/config.yaml"

    yield serve
    http_server.shutdown()
    http_server.server_close()


@pytest.fixture(autouse=True)
def repository(hub: HubServer) -> Repository:
    hub.repositories[MODEL_ID] = Repository(tiny_model.files(), lfs={"model.safetensors"})
    return hub.repositories[MODEL_ID]


def manifest_of(path: Path) -> Manifest:
    return verify(path)


def test_a_config_url_gives_a_verified_engine_tar_and_leaves_it_in_the_working_directory(
    server: CogServer, serve: Callable[..., str], repository: Repository
) -> None:
    answer = server.build(config=serve(model_id=MODEL_ID))
    assert answer["status"] == "succeeded", answer
    header, _, content = answer["output"].partition(",")
    assert header == "data:application/x-tar;base64"
    engine_tar = server.folder / "engine.tar"
    assert base64.b64decode(content) == engine_tar.read_bytes()
    manifest = manifest_of(engine_tar)
    assert (manifest.model_id, manifest.revision) == (MODEL_ID, repository.commit)
    assert "model.safetensors" in manifest.files


@pytest.mark.parametrize("place", ["config.yaml", "./config.yaml"])
def test_a_path_on_the_builder_is_taken_as_a_config_too(
    server: CogServer, serve: Callable[..., str], place: str
) -> None:
    serve(model_id=MODEL_ID)
    assert server.build(config=place)["status"] == "succeeded"


def test_a_token_opens_the_model_and_is_found_nowhere_afterwards(
    server: CogServer, serve: Callable[..., str], repository: Repository
) -> None:
    url = serve(model_id=MODEL_ID, revision="main", hf_token=TOKEN_IN_YAML)
    repository.token = TOKEN_IN_YAML
    from_yaml = server.build(config=url)
    repository.token = TOKEN_IN_INPUT
    from_input = server.build(config=url, hf_token=TOKEN_IN_INPUT)
    repository.token = "hf_another"
    denied = server.build(config=url, hf_token=TOKEN_IN_INPUT)
    (server.folder / "config.yaml").unlink()

    assert (from_yaml["status"], from_input["status"]) == ("succeeded", "succeeded")
    assert "E1207 ModelAccessDenied" in denied["error"]
    seen = [str(from_yaml), str(from_input), str(denied), *server.log]
    seen += [path.read_text(errors="replace") for path in server.folder.rglob("*") if path.is_file()]
    for token in (TOKEN_IN_YAML, TOKEN_IN_INPUT):
        forms = (token, base64.b64encode(token.encode()).decode().rstrip("="))
        assert not [text for text in seen if any(form in text for form in forms)]


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({}, "E1204"),
        ({"model_idd": MODEL_ID}, "E1202"),
        ({"model_id": "../etc"}, "E1203"),
        ({"engine": "transformers"}, "E1204"),
        ({"model_path": "no/such/folder"}, "E1205"),
        ({"model_id": "acme/none"}, "E1206"),
        ({"model_id": MODEL_ID, "weight_format": "pt"}, "E1208"),
        ({"engine": "vllm", "model_id": MODEL_ID, "vllm": {"dtypes": "half"}}, "E1202"),
        ({"model_id": MODEL_ID, "max_seq_len": 65}, "E1203"),
    ],
)
def test_a_wrong_config_gives_its_code_no_tar_and_a_server_that_goes_on(
    server: CogServer, serve: Callable[..., str], keys: dict[str, object], code: str
) -> None:
    (server.folder / "engine.tar").write_bytes(b"of an earlier build")
    answer = server.build(config=serve(**keys))
    assert answer["status"] == "failed"
    assert f"{code} " in answer["error"]
    assert not (server.folder / "engine.tar").exists()
    assert server.is_ready()


@pytest.mark.parametrize("config", ["", "no/such/file.yaml", "/", "data:text/plain,%00"])
def test_a_config_that_is_none_gives_a_code(server: CogServer, config: str) -> None:
    answer = server.build(config=config)
    assert any(code in answer["error"] for code in ("E1005", "E1201"))
    assert server.is_ready()


def test_a_failed_download_gives_its_code_and_the_next_build_succeeds(
    server: CogServer, serve: Callable[..., str], repository: Repository
) -> None:
    content = repository.files["generation_config.json"] = b'{"eos_token_id": [1]}'
    repository.commit = "d" * 40
    repository.sent_instead["generation_config.json"] = b"x" * len(content)
    url = serve(model_id=MODEL_ID)
    assert "E2302 DownloadCorrupt" in server.build(config=url)["error"]
    repository.sent_instead.clear()
    assert server.build(config=url)["status"] == "succeeded"


def test_a_cancelled_build_ends_at_once_leaves_no_tar_and_the_next_succeeds(
    server: CogServer, serve: Callable[..., str], hub: HubServer, repository: Repository
) -> None:
    repository.files["tokenizer_config.json"] = b'{"eos_token": "</s>", "model_max_length": 64}'
    repository.commit = "e" * 40
    hold = repository.held["tokenizer_config.json"] = threading.Event()
    asked = repository.asked["tokenizer_config.json"] = threading.Event()
    url = serve(model_id=MODEL_ID)
    request = {
        "input": {"config": url},
        "webhook": url.replace("config.yaml", "webhook"),
        "webhook_events_filter": ["completed"],
    }
    headers = {"Prefer": "respond-async"}
    started = httpx.post(
        f"{server.url}/predictions", json=request, headers=headers, timeout=DEADLINE_S
    ).json()
    assert asked.wait(DEADLINE_S)
    httpx.post(f"{server.url}/predictions/{started['id']}/cancel", timeout=DEADLINE_S).raise_for_status()
    assert webhooks.get(timeout=300)["status"] == "canceled"
    assert not (server.folder / "engine.tar").exists()
    assert not list((server.folder / "cache" / "builds").iterdir())
    hold.set()
    answer = server.build(config=url)
    assert answer["status"] == "succeeded", answer


def test_a_large_engine_is_answered_by_its_place_and_not_by_its_bytes(
    server: CogServer, serve: Callable[..., str], repository: Repository
) -> None:
    repository.files["model.safetensors"] = tiny_model.large_safetensors(65 << 20)
    repository.commit = "f" * 40
    answer = server.build(config=serve(model_id=MODEL_ID))
    engine_tar = server.folder / "engine.tar"
    assert answer["output"] == engine_tar.as_uri()
    assert manifest_of(engine_tar).revision == repository.commit
