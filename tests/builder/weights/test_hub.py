"""The real Hub client against a server on loopback: whole files or none, continued, checked, never leaky."""

import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest
from pydantic import SecretStr

from builder.weights import downloads
from builder.weights.hub import Hub
from engine.download.http import Temporary
from errors.build import BuildFailed, DownloadCorrupt, DownloadFailed
from errors.build_config import ModelAccessDenied, ModelNotFound
from errors.download import SourceUnreachable
from tests.builder.conftest import MODEL_ID
from tests.builder.hub_server import HubServer, Repository

WEIGHTS = "model.safetensors"


def fetch(cache: Path, *names: str, token: str | None = None, revision: str = "main") -> dict[str, bytes]:
    hub = Hub(token=SecretStr(token) if token else None, cache=cache)
    snapshot = hub.snapshot(MODEL_ID, revision)
    paths = hub.fetch(snapshot, names or ("config.json", WEIGHTS), None)
    return {name: path.read_bytes() for name, path in paths.items()}


def incomplete(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.incomplete"))


def test_a_revision_is_resolved_to_its_commit_and_files_arrive_as_they_are(
    cache: Path, repository: Repository
) -> None:
    assert Hub(token=None, cache=cache).snapshot(MODEL_ID, "main").commit == repository.commit
    assert fetch(cache) == {name: repository.files[name] for name in ("config.json", WEIGHTS)}


@pytest.mark.parametrize("lists_for_all", [False, True], ids=["private", "gated"])
def test_what_is_there_is_not_given_to_a_caller_whom_the_hub_refuses(
    cache: Path, repository: Repository, lists_for_all: bool
) -> None:
    repository.token, repository.lists_for_all = "hf_right", lists_for_all
    fetch(cache, token="hf_right")
    for revision in ("main", "c" * 40):
        with pytest.raises(ModelAccessDenied, match="licence"):
            fetch(cache, token="hf_wrong", revision=revision)


def test_a_later_build_continues_what_an_earlier_one_left(
    cache: Path, hub: HubServer, repository: Repository
) -> None:
    repository.cut_at[WEIGHTS] = [1000] + [0] * downloads.NUM_TRIES
    with pytest.raises(DownloadFailed, match="kept and continued"):
        fetch(cache)
    assert [path.stat().st_size for path in incomplete(cache)] == [1000]
    hub.requests.clear()
    repository.cut_at[WEIGHTS] = [0, 0]  # Failures that pass are tried again.
    assert fetch(cache)[WEIGHTS] == repository.files[WEIGHTS]
    assert hub.asked_for(f"/{WEIGHTS}")[-1].first == 1000
    assert incomplete(cache) == []


def test_a_file_is_asked_for_again_while_others_arrive(
    cache: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, tries = downloads._receive, 0

    def refused_while_another_arrives(
        download: downloads.Download, file: BinaryIO, shared: downloads._Shared
    ) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            shared.add(1)
            error = SourceUnreachable(source="it", reason="no more connections")
            raise error from Temporary(error)
        receive(download, file, shared)

    monkeypatch.setattr(downloads, "_receive", refused_while_another_arrives)
    assert fetch(cache, WEIGHTS)[WEIGHTS] == repository.files[WEIGHTS]
    assert tries == 3


def test_a_server_that_ignores_ranges_gets_asked_from_the_start(cache: Path, repository: Repository) -> None:
    repository.cut_at[WEIGHTS] = [1000]
    repository.ignores_ranges = True
    assert fetch(cache)[WEIGHTS] == repository.files[WEIGHTS]


def test_leftovers_longer_than_the_file_are_thrown_away(cache: Path, repository: Repository) -> None:
    repository.cut_at[WEIGHTS] = [1000] + [0] * downloads.NUM_TRIES
    with pytest.raises(DownloadFailed):
        fetch(cache)
    (partial,) = incomplete(cache)
    partial.write_bytes(b"x" * (len(repository.files[WEIGHTS]) + 10))
    assert fetch(cache)[WEIGHTS] == repository.files[WEIGHTS]


@pytest.mark.parametrize(("name", "algorithm"), [(WEIGHTS, "sha256"), ("config.json", "git-sha1")])
def test_a_wrong_hash_is_an_error_that_leaves_nothing_and_the_next_try_may_succeed(
    cache: Path, repository: Repository, name: str, algorithm: str
) -> None:
    repository.sent_instead[name] = repository.files[name][:-1] + b"!"
    with pytest.raises(DownloadCorrupt, match=algorithm):
        fetch(cache)
    assert not [path for path in cache.rglob("*") if path.is_file() and b"!" in path.read_bytes()[-1:]]
    repository.sent_instead.clear()
    assert fetch(cache)[name] == repository.files[name]


def test_a_server_that_lists_no_hashes_is_asked_file_by_file(cache: Path, repository: Repository) -> None:
    repository.lists_hashes = False
    assert fetch(cache)[WEIGHTS] == repository.files[WEIGHTS]
    repository.sent_instead["tokenizer.json"] = b"x" * len(repository.files["tokenizer.json"])
    with pytest.raises(DownloadCorrupt):
        fetch(cache, "tokenizer.json")


@pytest.mark.parametrize("headers", [{"Retry-After": "7"}, {"RateLimit": '"api";r=0;t=7'}])
def test_a_hub_that_limits_the_rate_is_asked_again_when_it_says(
    cache: Path,
    hub: HubServer,
    repository: Repository,
    headers: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("builder.weights.hub.time.sleep", waits.append)
    hub.limits = [headers, {}]
    assert fetch(cache)[WEIGHTS] == repository.files[WEIGHTS]
    assert waits == [7.0, 2.0]
    hub.limits = [headers] * 9
    with pytest.raises(DownloadFailed, match=r"429.*token.*try again in 7 s"):
        fetch(cache)
    hub.limits, waits[:] = [{"Retry-After": "250"}], []
    with pytest.raises(DownloadFailed, match="try again in 4 min"):
        fetch(cache)
    assert not waits


@pytest.mark.parametrize(("status", "token"), [(401, None), (403, "hf_wrong")])
def test_a_refusal_names_the_model_and_the_remedy(
    cache: Path, repository: Repository, status: int, token: str | None
) -> None:
    repository.token, repository.refusal = "hf_right", status
    with pytest.raises(ModelAccessDenied, match="licence") as caught:
        fetch(cache, token=token)
    assert caught.value.facts["status"] == status
    assert "hf_wrong" not in str(caught.value)


SHA = b'{"id": "acme/tiny", "sha": "%s' % (b"c" * 40)
LISTINGS = [
    b"<html>a login page</html>",
    b"[]",
    b"null",
    b'{"id": "acme/tiny"}',
    b'{"id": "acme/tiny", "sha": "../../etc", "siblings": []}',
    SHA + b'/../../x", "siblings": []}',
    SHA + b'", "siblings": [{}]}',
    SHA + b'", "siblings": [{"rfilename": "a", "blobId": "../x"}]}',
]


def test_an_answer_that_is_no_hubs_is_told_and_changes_nothing(cache: Path, repository: Repository) -> None:
    for repository.listing in LISTINGS:
        with pytest.raises(DownloadFailed, match="check HF_ENDPOINT"):
            fetch(cache)
    assert not cache.exists()


def test_the_token_opens_a_private_model_and_never_goes_to_another_host(
    cache: Path, hub: HubServer, repository: Repository
) -> None:
    repository.token = "hf_right"
    fetch(cache, token="hf_right")
    sent = {(asked.headers["host"] in hub.url, asked.headers.get("authorization")) for asked in hub.requests}
    assert sent == {(True, "Bearer hf_right"), (False, None)}
    assert not [path for path in cache.rglob("*") if path.is_file() and b"hf_right" in path.read_bytes()]


@pytest.mark.parametrize(("model_id", "revision"), [("acme/none", "main"), (MODEL_ID, "v9")])
def test_a_model_or_revision_that_does_not_exist_is_named(
    cache: Path, repository: Repository, model_id: str, revision: str
) -> None:
    with pytest.raises(ModelNotFound, match=f"{model_id}.*{revision}"):
        Hub(token=None, cache=cache).snapshot(model_id, revision)


@pytest.mark.parametrize(
    ("endpoint", "name", "told"),
    [
        ("http://user:secret@127.0.0.1:1", MODEL_ID, "check the name and the network"),
        ("http://127.0.0.1:1", "nope", "if a file or folder was meant, there is no nope here"),
        ("nonsense", MODEL_ID, "nonsense failed .*check the name and the network"),
        ("http://127.0.0.1:notaport", MODEL_ID, "notaport failed .*check HF_ENDPOINT"),
    ],
)
def test_no_server_at_all_is_told_with_what_to_do(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, name: str, told: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DownloadFailed, match=told) as caught:
        Hub(token=None, cache=cache).snapshot(name, "main")
    assert "secret" not in str(caught.value)
    assert ("a file or folder" in str(caught.value)) is (name == "nope")


def test_a_cache_that_is_a_file_is_told(tmp_path: Path, repository: Repository) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Exception, match=r"E\d{4}") as caught:
        fetch(tmp_path / "file")
    assert isinstance(caught.value, BuildFailed) or "can't be written" in str(caught.value)


OFFLINE = """
import sys
from pathlib import Path
from builder.weights.hub import Hub
hub = Hub(token=None, cache=Path(sys.argv[1]))
snapshot = hub.snapshot(sys.argv[2], "main")
for name in sys.argv[3:]:
    print(hub.fetch(snapshot, [name], None)[name].stat().st_size, flush=True)
"""


def test_offline_the_cache_answers_and_nothing_else(
    cache: Path, hub: HubServer, repository: Repository
) -> None:
    fetch(cache)
    hub.requests.clear()
    command = [sys.executable, "-c", OFFLINE, str(cache), MODEL_ID, WEIGHTS, "tokenizer.json"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert hub.requests == []
    assert done.stdout.split() == [str(len(repository.files[WEIGHTS]))]
    assert "E2301 DownloadFailed" in done.stderr
    assert "HF_HUB_OFFLINE is set" in done.stderr
