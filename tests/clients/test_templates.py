"""The chat templates of 70 models, which llama-cpp-python's source on PyPI has: no message is lost by any."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.clients.conftest import PYTHON, ROOT

_NAME = "llama-cpp-python==0.3.36"
_HASH = "sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_FOLDER = "vendor/llama.cpp/models/templates/"
_TEMPLATES = ROOT / ".cache" / "templates" / _NAME
_MOST_FETCH_S = 500.0
_REFUSED = {
    "llama-cpp-deepseek-r1": "is not JSON serializable",
    "fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",
}
"""What refuses chats by other words than ours: one needs a filter of llama.cpp's, one a variable."""


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """The folder of the templates, which is kept; the test is skipped where PyPI can't be reached."""
    if _TEMPLATES.is_dir():
        return _TEMPLATES
    wanted = tmp_path / "wanted.txt"
    wanted.write_text(f"{_NAME} --hash={_HASH}\n")
    options = ["--no-deps", "--no-binary=:all:", "--require-hashes", "-r", str(wanted)]
    command = [PYTHON, "-m", "pip", "download", "--quiet", *options, "-d", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_FETCH_S, check=False)
    if done.returncode:
        pytest.skip(f"pip can't download {_NAME}: {done.stderr.strip()[-300:]}")
    unpacked = tmp_path / "templates"
    unpacked.mkdir()
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name
            if _FOLDER in name and name.endswith(".jinja") and (file := tar.extractfile(member)) is not None:
                (unpacked / Path(name).name).write_bytes(file.read())
    _TEMPLATES.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(unpacked, _TEMPLATES)
    return _TEMPLATES


def test_each_text_is_in_the_prompt_whichever_template_writes_it(templates: Path) -> None:
    command = [PYTHON, "-m", "tests.runner.chat.many_templates", str(templates)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    failures = json.loads(done.stdout)
    assert len(failures) > 60
    for name, reason in _REFUSED.items():
        failures[name] = [each for each in failures[name] if reason not in each]
    assert {name: found for name, found in failures.items() if found} == {}
