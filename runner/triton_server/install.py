"""Place and needs of Triton's server: the files of the nvidia-pytriton wheel."""

import importlib.util
import os
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.machine.libpython import libpython_dir
from engine.machine.root import SET_UP
from errors.settings import MissingRequirement

CPP_LIBRARY = "libtriton_tensorrtllm.so"


@dataclass(frozen=True)
class TritonInstall:
    """The server's binary, the folder of its backends, and the folders of the libraries both need."""

    server: Path
    backend_dir: Path
    library_dirs: tuple[Path, ...]

    def environment(self) -> dict[str, str]:
        """Return our environment, changed so that Triton's stub finds libpython and our Python first."""
        before = os.environ.get("LD_LIBRARY_PATH", "")
        libraries = [*map(str, self.library_dirs), *before.split(":")]
        return dict(
            os.environ,
            LD_LIBRARY_PATH=":".join(filter(None, libraries)),
            # NOTE: the stub embeds Python and takes its prefix from the first `python3` on PATH.
            PATH=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        )


def install_triton(runtime_dir: Path, extra_backend_dir: Path | None) -> TritonInstall:
    """Lay out a backend folder for this Python, with the backends of ``extra_backend_dir``. Raises E1008."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise MissingRequirement(what="nvidia-pytriton (Triton's server)", remedy=SET_UP)
    wheel = Path(spec.origin).parent
    server = wheel / "tritonserver" / "bin" / "tritonserver"
    if not os.access(server, os.X_OK):
        server.chmod(server.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    backend_dir = runtime_dir / "backends"
    _lay_out_python_backend(wheel, backend_dir / "python")
    if extra_backend_dir is not None:
        for extra in extra_backend_dir.iterdir():
            if extra.is_dir() and extra.name != "python":
                (backend_dir / extra.name).unlink(missing_ok=True)
                (backend_dir / extra.name).symlink_to(extra.resolve())
    return TritonInstall(server, backend_dir, (wheel.parent / "nvidia_pytriton.libs", _libpython_dir()))


def cpp_backend_dir(extra_backend_dir: Path | None) -> Path | None:
    """Find the folder of NVIDIA's C++ TensorRT-LLM backend among those backends."""
    if extra_backend_dir is None:
        return None
    folder = extra_backend_dir / "tensorrtllm"
    return folder if (folder / CPP_LIBRARY).is_file() else None


def _lay_out_python_backend(wheel: Path, target: Path) -> None:
    """Put the stub for this Python version beside the backend's library, where Triton looks for it."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = wheel / "tritonserver" / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise MissingRequirement(
            what=f"Triton's Python stub for Python {version}", remedy="use Python 3.10, 3.11 or 3.12"
        )
    target.mkdir(parents=True, exist_ok=True)
    for source in (wheel / "tritonserver" / "backends" / "python").iterdir():
        if source.is_file():
            shutil.copy2(source, target / source.name)
    shutil.copy2(stub, target / stub.name)
    (target / stub.name).chmod(0o755)


def _libpython_dir() -> Path:
    """Return the folder of the shared libpython that the stub links against."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if (folder := libpython_dir(version)) is None:
        name = f"libpython{version}"
        remedy = f"install it (Debian, Ubuntu: apt-get install {name})"
        raise MissingRequirement(what=f"The shared library {name}.so.1.0", remedy=remedy)
    return folder
