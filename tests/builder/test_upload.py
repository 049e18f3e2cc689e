"""A finished engine goes to the upload URL by Cog's protocol, or is kept, with a coded error."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.upload import find_upload_url, upload
from errors.build import UploadFailed
from tests.scripted_server import Asked, ScriptedServer, Write, head


class Uploads:
    """What an upload server was sent, by path, and how it answers."""

    def __init__(self) -> None:
        self.url = ""
        self.received: dict[str, bytes] = {}
        self.content_types: set[str] = set()
        self.status = 200
        self.location: str | None = None
        self.redirects = 0

    def answer(self, asked: Asked, write: Write) -> bool:
        status, location = self.status if asked.method == "PUT" else 405, self.location
        if self.redirects:
            self.redirects -= 1
            status, location = 307, f"/moved{asked.path}"
        else:
            self.received[asked.path] = asked.body
            self.content_types.add(asked.headers["content-type"])
        write(head(status, {"Location": location, "Content-Length": 0}))
        return True


@pytest.fixture
def uploads() -> Iterator[Uploads]:
    state = Uploads()
    with ScriptedServer(state.answer) as server:
        state.url = f"{server.url}/put"
        yield state


@pytest.fixture
def engine_tar(tmp_path: Path) -> Path:
    path = tmp_path / "engine.tar"
    path.write_bytes(bytes(range(256)) * 9000)
    return path


def test_the_file_arrives_whole_under_its_name_and_progress_is_told_up_to_the_end(
    uploads: Uploads, engine_tar: Path
) -> None:
    told: list[tuple[int, int | None, str]] = []
    for slash in ("", "/"):
        url = upload(engine_tar, uploads.url + slash, lambda *progress: told.append(progress))
        assert url == f"{uploads.url}/engine.tar"
    assert uploads.received == {"/put/engine.tar": engine_tar.read_bytes()}
    assert uploads.content_types == {"application/x-tar"}
    size_bytes = engine_tar.stat().st_size
    assert told[-1] == (size_bytes, size_bytes, "uploading")


def test_a_signature_stays_behind_the_name_and_is_not_answered(uploads: Uploads, engine_tar: Path) -> None:
    assert upload(engine_tar, f"{uploads.url}?sig=a%2Fb&expires=9", None) == f"{uploads.url}/engine.tar"
    assert uploads.received == {"/put/engine.tar?sig=a%2Fb&expires=9": engine_tar.read_bytes()}
    uploads.location = "https://files.example/e.tar?signature=secret"
    assert upload(engine_tar, uploads.url, None) == "https://files.example/e.tar"
    uploads.received.clear()
    uploads.redirects = 2
    upload(engine_tar, uploads.url, None)
    assert uploads.received == {"/moved/moved/put/engine.tar": engine_tar.read_bytes()}


@pytest.mark.parametrize("failure", ["refused", "endless redirects", "no server", "no URL"])
def test_a_failure_is_coded_keeps_the_file_and_hides_credentials(
    uploads: Uploads, engine_tar: Path, failure: str
) -> None:
    url = uploads.url.replace("//", "//user:secret@") + "?sig=secret"
    if failure == "refused":
        uploads.status = 403
    elif failure == "endless redirects":
        uploads.redirects = 99
    else:
        url = {"no server": "http://user:secret@127.0.0.1:1/", "no URL": "http://[secret"}[failure]
    with pytest.raises(UploadFailed, match=str(engine_tar)) as caught:
        upload(engine_tar, url, None)
    assert "secret" not in str(caught.value)
    assert engine_tar.exists()


@pytest.mark.parametrize("option", [["--upload-url", "http://h/p"], ["--upload-url=http://h/p"], []])
def test_the_option_of_the_server_above_is_found(option: list[str]) -> None:
    child = "from builder.upload import find_upload_url as find; print(find())"
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    command = [sys.executable, "-c", parent, child, *option]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert found == ("http://h/p" if option else "None")


def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COG_UPLOAD_URL", "http://v/")
    assert find_upload_url() == "http://v/"
