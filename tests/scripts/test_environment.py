"""uv is installed by pip, told pip's settings, and heard while it works."""

import sys
from pathlib import Path

import pytest

from errors.settings import MissingRequirement
from scripts import environment


def test_a_large_download_is_told_and_the_shells_python_settings_are_not_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    lines = ("Downloading torch (1.9GiB)", "Downloading pytriton (52.8MiB)", "Downloading idna (1.2MiB)")
    with pytest.raises(environment.InstallationFailed, match="uv failed") as caught:
        environment.run(
            "uv", "sh", "-c", f"printf '%s\\n' '{lines[0]}' '{lines[1]}' '{lines[2]}' $PYTHONPATH; exit 3"
        )
    assert capsys.readouterr().out == "  downloading torch (1.9GiB)\n  downloading pytriton (52.8MiB)\n"
    assert caught.value.output == "".join(f"{line}\n" for line in lines)


def put_pip(root: Path, script: str) -> None:
    pip = root / ".cache" / "uv" / "bin" / "pip"
    pip.parent.mkdir(parents=True, exist_ok=True)
    pip.write_text(f"#!/bin/sh\n{script}\n")
    pip.chmod(0o755)


def test_uv_is_told_what_pip_is_configured_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://user:word@mirror.example/simple\ntimeout = 7\n"
        "find-links =\n  /wheels\n  /more\n[install]\nextra-index-url = http://a.example http://b.example\n"
        "no-index = true\n"
    )
    for name in [name for name in environment.os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_TIMEOUT", "9")
    monkeypatch.setenv("UV_INDEX_STRATEGY", "first-index")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    put_pip(tmp_path, f'exec {sys.executable} -m pip "$@"')
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    told = environment.pip_settings()
    told.pop("SSL_CERT_FILE", None)
    assert told.pop("UV_CACHE_DIR") == str(tmp_path / ".cache" / "packages")
    assert told == {
        "UV_DEFAULT_INDEX": "https://user:word@mirror.example/simple",
        "UV_INDEX": "http://a.example http://b.example",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_OFFLINE": "true",
        "UV_HTTP_TIMEOUT": "9",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    put_pip(tmp_path, "echo Configuration file could not be loaded: http://user:word@mirror >&2; exit 2")
    with pytest.raises(environment.InstallationFailed, match="pip config list failed") as caught:
        environment.pip_settings()
    assert caught.value.output == "Configuration file could not be loaded: http://****@mirror\n"


def test_an_index_without_uvs_wheel_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "uv.txt").write_text("uv==0 --hash=sha256:00\n")
    monkeypatch.setattr(environment.machine, "PYTHON", "true")
    put_pip(tmp_path, "echo 'ERROR: No matching distribution found for uv==0'; exit 1")
    with pytest.raises(MissingRequirement, match=r"E1008 .*uv's wheel.* check the network, and index-url"):
        environment.find_uv()
    put_pip(tmp_path, "echo 'No space left on device'; exit 1")
    with pytest.raises(environment.InstallationFailed, match="pip install failed"):
        environment.find_uv()
    put_pip(tmp_path, f'echo "$@" > {tmp_path}/asked')
    assert environment.find_uv() == str(tmp_path / ".cache" / "uv" / "bin" / "uv")
    assert "--require-hashes -r " in (tmp_path / "asked").read_text()
    put_pip(tmp_path, "exit 1")
    environment.find_uv()
