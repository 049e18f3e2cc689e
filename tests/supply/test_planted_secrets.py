"""Tokens and signed URLs are planted, real builds and a real runner run, and nothing shows any of them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from engine.machine.python import engine_python
from tests.builder import tiny_model
from tests.builder.cog_server import CogServer
from tests.builder.hub_server import HubServer, Repository
from tests.builder.weights.test_model_tar import tar_of
from tests.runner.otlp_receiver import OtlpReceiver
from tests.runner.paced_engine import make_paced_model
from tests.runner.servers import DEADLINE_S, HOST, CogUnderTest, free_ports, wait_until
from tests.scripted_server import Asked, ScriptedServer, Write, head
from tests.supply.watch import CommandLines, leaks, texts_of

MODEL_ID = "acme/tiny"
IN_YAML, IN_INPUT, IN_ENVIRONMENT = "planted-yaml/1", "hf_plantedInput0123456789", "planted-variable/3"
PASSWORD, SIGNATURE, CLOUD_KEY = "planted-password", "planted-signature", "planted-cloud-key"
API_KEY, WRONG_KEY = "planted-api-key", "planted-wrong-key"
SECRETS = (IN_YAML, IN_INPUT, IN_ENVIRONMENT, PASSWORD, SIGNATURE, CLOUD_KEY)
WHOLE_LOGIN = f"user:{PASSWORD}"


class Files(ScriptedServer):
    """A server that asks for the planted password: what it has, and what it was sent, by path."""

    def __init__(self) -> None:
        self.offered: dict[str, bytes] = {}
        self.received: dict[str, bytes] = {}
        self.refuses_uploads = False
        super().__init__(self._answer)

    def secret_url(self, path: str) -> str:
        return self.url.replace("//", f"//{WHOLE_LOGIN}@") + f"{path}?sig={SIGNATURE}"

    def _answer(self, asked: Asked, write: Write) -> bool:
        path, _, query = asked.path.partition("?")
        status, content = 200, b""
        if "authorization" not in asked.headers or query != f"sig={SIGNATURE}":
            status = 401
        elif asked.method == "PUT":
            self.received[path] = asked.body
            status = 403 if self.refuses_uploads else 200
        elif path in self.offered:
            content = self.offered[path]
        else:
            status = 404
        write(head(status, {"Content-Length": len(content)}) + (b"" if asked.method == "HEAD" else content))
        return True


@pytest.fixture
def files() -> Iterator[Files]:
    with Files() as server:
        yield server


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def builder(tmp_path: Path, hub: HubServer, files: Files) -> Iterator[CogServer]:
    folder = tmp_path / "src"
    folder.mkdir()
    variables = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "hf"),
        "COG_TRITON_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder),
        "HF_TOKEN": IN_ENVIRONMENT,
        "AWS_SECRET_ACCESS_KEY": CLOUD_KEY,
        "COG_UPLOAD_URL": files.secret_url("/put"),
    }
    with CogServer(folder, variables) as server:
        yield server


def pickled_weights(folder: Path) -> bytes:
    """Return the tiny model's weights as torch pickles them: the builder must start a program for them."""
    code = (
        "import sys, torch; from safetensors.torch import load_file; "
        "torch.save(load_file(sys.argv[1]), sys.argv[2])"
    )
    source, target = folder / "model.safetensors", folder / "model.bin"
    source.write_bytes(tiny_model.safetensors(tiny_model.tensors()))
    run = subprocess.run([engine_python(), "-c", code, source, target], capture_output=True, check=False)
    if run.returncode != 0:
        pytest.skip(f"{engine_python()} has no torch: make setup, or COG_TRITON_ENGINE_PYTHON")
    return target.read_bytes()


def config_file(builder: CogServer, name: str, **keys: object) -> str:
    (builder.folder / name).write_text(yaml.safe_dump(keys))
    return name


@pytest.mark.servers
@pytest.mark.timeout(240)
def test_builds_show_no_secret(tmp_path: Path, builder: CogServer, hub: HubServer, files: Files) -> None:
    weights = pickled_weights(tmp_path)
    content = {name: each for name, each in tiny_model.files().items() if not name.endswith(".safetensors")}
    repository = Repository({**content, "pytorch_model.bin": weights}, lfs={"pytorch_model.bin"})
    hub.repositories[MODEL_ID] = repository
    files.offered["/config.yaml"] = yaml.safe_dump({"model_id": MODEL_ID, "hf_token": IN_YAML}).encode()
    by_url = files.secret_url("/config.yaml")
    by_path = config_file(builder, "plain.yaml", model_id=MODEL_ID)
    files.offered["/model.tar"] = tar_of(tiny_model.files())
    by_tar, by_none = (
        config_file(builder, f"{name}.yaml", model_tar_url=files.secret_url(f"/{name}.tar"))
        for name in ("model", "none")
    )
    answers = []
    with CommandLines(environments_of="builder/conversion") as processes:
        from_tar = [builder.build(config=by_tar), builder.build(config=by_none)]
        for token, inputs in (
            (IN_YAML, {"config": by_url}),
            (IN_INPUT, {"config": by_url, "hf_token": IN_INPUT}),
            (IN_ENVIRONMENT, {"config": by_path}),
        ):
            repository.token = token
            answers.append(builder.build(**inputs))
            assert answers[-1]["status"] == "succeeded", (answers[-1], builder.log)
        assert any("weights_to_safetensors" in line for line in processes.seen)
        repository.token = "another"
        answers += [
            builder.build(config=by_url, hf_token=IN_INPUT),
            builder.build(config=files.secret_url("/none.yaml")),
        ]
        repository.token = None
        files.refuses_uploads = True
        answers.append(builder.build(config=by_path))
    assert [answer["status"] for answer in from_tar] == ["succeeded", "failed"], from_tar
    assert [answer["status"] for answer in answers[3:]] == ["failed"] * 3
    assert "E1207" in answers[3]["error"]
    assert "UploadFailed" in answers[5]["error"]
    assert answers[0]["output"] == f"{files.url}/put/engine.tar"
    assert files.received["/put/engine.tar"][:100].startswith(b"engine_manifest.json")
    for name in (by_path, by_tar, by_none):
        (builder.folder / name).unlink()

    shown = [str(answer) for answer in answers + from_tar] + builder.log + texts_of(builder.folder)
    shown += [body.decode(errors="replace") for body in files.received.values()]
    assert processes.environments
    shown += [*processes.seen, *processes.environments]
    assert leaks(SECRETS, shown) == []


@pytest.mark.servers
def test_a_runner_and_its_api_show_no_secret_and_no_key(tmp_path: Path, files: Files) -> None:
    model = make_paced_model(tmp_path / "model", 0)
    files.offered["/engine.tar"] = model.tar.read_bytes()
    folder = tmp_path / "runner"
    folder.mkdir()
    (port,) = free_ports(1)
    url = f"http://{HOST}:{port}"
    with (
        OtlpReceiver() as receiver,
        CommandLines(environments_of="-m runner.api") as processes,
        CommandLines(environments_of="runner.engines.server.main") as engines,
    ):
        server = CogUnderTest(
            model,
            folder,
            COG_WEIGHTS=files.secret_url("/engine.tar"),
            HF_TOKEN=IN_ENVIRONMENT,
            AWS_SECRET_ACCESS_KEY=CLOUD_KEY,
            LOG_FORMAT="json",
            OPENAI_API_KEYS=API_KEY,
            OPENAI_HOST=HOST,
            OPENAI_PORT=str(port),
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            OTEL_BSP_SCHEDULE_DELAY="100",
        )
        try:
            answers = [
                httpx.post(
                    f"{url}/v1/completions",
                    json={"prompt": "hi", "max_tokens": 3, **more},
                    headers={"Authorization": f"Bearer {key}", "X-Request-ID": f"asked-{number}"},
                    timeout=300,
                )
                for number, (key, more) in enumerate(((API_KEY, {}), (WRONG_KEY, {}), (API_KEY, {"n": 0})))
            ]
            shown = [str(server.predict(prompt="hi", max_tokens=3)), str(server.server.health())]
            assert "succeeded" in shown[0]
            shown += [str(server.predict(prompt="hi", lora_name="none"))]
            metrics_port = server.counters._client.base_url.port
            shown += [httpx.get(f"http://127.0.0.1:{metrics_port}/metrics", timeout=DEADLINE_S).text]
            metrics = httpx.get(f"{url}/metrics", timeout=300)
            wait_until(
                lambda: len([span for span in receiver.spans if span.name.startswith("POST /v1")]) == 3
            )
        finally:
            server.close()
    assert [answer.status_code for answer in answers] == [200, 401, 400]
    assert processes.environments
    assert engines.environments
    shown += [f"{answer.headers}{answer.text}" for answer in answers] + [metrics.text, *engines.environments]
    shown += [span.text for span in receiver.spans]
    shown += [server.log(), *texts_of(folder), *processes.seen, *processes.environments]
    assert any("asked-2" in text for text in shown)
    assert leaks((*SECRETS, API_KEY, WRONG_KEY), shown) == []


@pytest.mark.servers
def test_a_runner_that_can_not_start_shows_no_secret(tmp_path: Path, files: Files) -> None:
    model = make_paced_model(tmp_path / "model", 0)
    files.offered["/broken.tar"] = b"no tar at all" * 100
    folder = tmp_path / "runner"
    folder.mkdir()
    server = CogUnderTest(
        model, folder, wait=False, COG_WEIGHTS=files.secret_url("/broken.tar"), HF_TOKEN=IN_ENVIRONMENT
    )
    try:
        wait_until(lambda: server.status() == "SETUP_FAILED")
        shown = [str(server.server.health()), server.log(), *texts_of(folder)]
    finally:
        server.close()
    assert any("E13" in text for text in shown)
    assert leaks(SECRETS, shown) == []


def test_the_search_finds_what_is_there() -> None:
    word = "planted-word"  # None of SECRETS: tests beside this one look at the same processes.
    command = [sys.executable, "-c", "import time; time.sleep(600)", word]
    with (
        CommandLines(environments_of="time.sleep(600)") as processes,
        subprocess.Popen(command, env={"X": SIGNATURE}) as process,
    ):
        try:
            wait_until(lambda: any(SIGNATURE in text for text in processes.environments))
        finally:
            process.kill()
    assert {form for form, _ in leaks((word,), processes.seen)} == {word}
    encoded = ["cGxhbnRlZC1wYXNzd29yZA", "planted-yaml%2F1"]
    assert [form for form, _ in leaks((PASSWORD, IN_YAML), encoded)] == encoded
