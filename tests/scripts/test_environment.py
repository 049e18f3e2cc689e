"""An environment is made of its lock, with packages that other checkouts downloaded; one set-up at a time."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scripts import environment, machine

ROOT = Path(__file__).parents[2]


def test_a_large_download_is_told_and_the_shells_python_settings_are_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "LOG", tmp_path / "setup.log")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    lines = (
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (1.9 GB)",
        "Downloading nvidia_pytriton-0.7.0-py3-none-manylinux_2_35_x86_64.whl (55.4 MB)",
        "  Downloading idna-3.20-py3-none-any.whl (71 kB)",
        "  Downloading rich-15.0.0-py3-none-any.whl.metadata (1.5 MB)",
    )
    environment.run("echo", "printf", "%s\n", *lines)
    environment.run("env", "sh", "-c", 'echo "PYTHONPATH=$PYTHONPATH."')
    out = capsys.readouterr().out
    assert out == "  downloading torch-2.13.0 (1.9 GB)\n  downloading nvidia_pytriton-0.7.0 (55.4 MB)\n"
    assert environment.LOG.read_text() == "\n".join((*lines, "PYTHONPATH=.")) + "\n"


class Index:
    """A package index on loopback with the package ``tiny``: no Cache-Control, and requests are counted."""

    def __init__(self) -> None:
        self.requests = 0
        self.wheel = _tiny_wheel()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

            def do_GET(self) -> None:
                index.requests += 1
                is_wheel = self.path.endswith(".whl")
                content = index.wheel if is_wheel else f'<a href="/{TINY_WHEEL}">{TINY_WHEEL}</a>'.encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


TINY_WHEEL = "tiny-1.0-py3-none-any.whl"


def _tiny_wheel() -> bytes:
    buffer = io.BytesIO()
    metadata = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.0.dist-info/METADATA", metadata)
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    return buffer.getvalue()


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    yield index
    index.server.shutdown()
    index.server.server_close()


@pytest.mark.slow
def test_progress_tells_packages_and_megabytes_of_how_many(tmp_path: Path) -> None:
    lock = tmp_path / "serving.txt"
    lock.write_text(
        "# pinned\n"
        "a==1 ; python_full_version < '3.11' \\\n    --hash=sha256:00\n"
        "a==2 ; python_full_version >= '3.11' \\\n    --hash=sha256:00\n"
        "b[c]==3 \\\n    --hash=sha256:00\nd==4 \\\n    --hash=sha256:00\n"
    )
    progress = environment.PipProgress("download", ("--require-hashes", "-r", str(lock)), tmp_path)
    assert str(progress) == "pip download"
    told = {
        "Ignoring a: markers 'python_full_version < \"3.11\"' don't match your environment": "",
        "Collecting a==2 (from -r serving.txt (line 4))": ": 1 of 3 packages",
        "  Downloading a-2-py3-none-any.whl.metadata (700 kB)": ": 1 of 3 packages",
        "  Downloading a-2-py3-none-any.whl (1.5 MB)": ": 1 of 3 packages, 2 of 123 MB",
        "Processing ./b-3-py3-none-any.whl": ": 2 of 3 packages, 2 of 123 MB",
        "Installing collected packages: a, b, d": ": 0 of 3 packages installed",
    }
    for line, text in told.items():
        progress.read(line)
        assert str(progress) == f"pip download{text}"
    (tmp_path / "a-2.dist-info").mkdir()
    assert str(progress) == "pip download: 1 of 3 packages installed"


def test_a_second_checkout_downloads_nothing(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setattr(environment, "LOG", tmp_path / "setup.log")
    monkeypatch.setattr(environment, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(environment, "REQUIREMENTS", tmp_path)
    digest = hashlib.sha256(index.wheel).hexdigest()
    (tmp_path / "tiny.txt").write_text(f"tiny==1.0 --hash=sha256:{digest}\n")
    python = machine.describe(sys.executable)
    assert python is not None

    def set_up(checkout: str, *, compiles: bool = True) -> environment.Environment:
        made = environment.Environment(tmp_path / checkout / ".venv", python, ("tiny",))
        with made.being_made():
            made.install(*environment.locked("tiny"), compiles=compiles)
        assert (made.site_packages / "tiny.py").exists()
        return made

    set_up("first", compiles=False)
    requests = index.requests
    assert requests > 0
    second = set_up("second")
    assert index.requests == requests
    (tmp_path / "wheels" / TINY_WHEEL).write_bytes(b"damaged")
    shutil.rmtree(second.site_packages / "tiny-1.0.dist-info")
    second.install(*environment.locked("tiny"))
    assert index.requests > requests


def test_two_at_once_take_turns(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from scripts import environment as s\n"
        "with s.alone(Path(sys.argv[1]), 'Waiting'):\n"
        "    print('its turn', flush=True), sys.stdin.readline(), print('done', flush=True)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "lock")]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as first,
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as second,
    ):
        one, other = first.stdout, second.stdout
        assert one is not None
        assert other is not None
        said = {first: one.readline(), second: other.readline()}
        assert sorted(said.values()) == [
            "Waiting\n",
            "its turn\n",
        ]
        holder, waiter = sorted(said, key=lambda process: said[process], reverse=True)
        assert holder.communicate("\n")[0] == "done\n"
        assert waiter.communicate("\n")[0] == "its turn\ndone\n"
