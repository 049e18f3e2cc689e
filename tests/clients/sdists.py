"""Files of source distributions on PyPI, which are kept and never run."""

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.clients.conftest import PYTHON, ROOT

_MOST_FETCH_S = 500.0
_NO_BUILD = """
from pathlib import Path

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = Path(folder, "{name}-{version}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return info.name
"""
"""A build backend that pip asks for the metadata, in place of the source's own."""


def sdist_files(wanted: str, sha256: str, paths: str, tmp_path: Path) -> Path:
    """Return a folder with the files of ``wanted`` (``NAME==VERSION``) whose paths match.

    The test is skipped where PyPI can't be reached.
    """
    kept = ROOT / ".cache" / "sdists" / wanted
    if kept.is_dir():
        return kept
    name, _, version = wanted.partition("==")
    for backend in ("setuptools/build_meta", "scikit_build_core/build"):
        module = tmp_path / "no-build" / f"{backend}.py"
        module.parent.mkdir(parents=True)
        (module.parent / "__init__.py").touch()
        module.write_text(_NO_BUILD.format(name=name.replace("-", "_"), version=version))
    requirement = tmp_path / "wanted.txt"
    requirement.write_text(f"{wanted} --hash=sha256:{sha256}\n")
    options = ["--no-deps", "--no-build-isolation", "--no-binary=:all:", "--require-hashes"]
    command = [
        PYTHON,
        "-m",
        "pip",
        "download",
        "--quiet",
        *options,
        "-r",
        str(requirement),
        "-d",
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "no-build")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_MOST_FETCH_S, check=False
    )
    if done.returncode:
        pytest.skip(f"pip can't download {wanted}: {done.stderr.strip()[-300:]}")
    unpacked = tmp_path / "unpacked"
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            if re.fullmatch(paths, path) and (file := tar.extractfile(member)) is not None:
                (unpacked / path).parent.mkdir(parents=True, exist_ok=True)
                (unpacked / path).write_bytes(file.read())
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(unpacked, kept)
    return kept
