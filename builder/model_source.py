"""What a user names to build or serve: a build config, a model, or an engine that is there already.

owner/name  owner/name@revision     a model on the Hugging Face Hub
owner/name:model.Q8_0.gguf          one GGUF file of it
https://huggingface.co/owner/name   the same, by its page or by that of its branch or file
path/to/folder                      a model's folder, in a checkout or in the Hub's own cache
path/to/model.Q8_0.gguf             a GGUF file
config.yaml  https://.../c.yaml     a build config
"""

import json
import re
from pathlib import Path
from typing import Any

from builder.config.file import ConfigFile, checked_config, is_config_url, read_config
from builder.config.hub_page import GGUF, hub_page
from engine.kinds import KINDS, Kind
from engine.machine.gpu import visible_gpus
from engine.machine.preflight import installed_version
from engine.machine.python import ENGINE_PYTHON_VARIABLE, engine_python
from engine.machine.root import IS_CHECKOUT
from engine.tar.manifest import MANIFEST_NAME
from errors.build_config import ModelUnusable
from errors.requests import InvalidInput

_CONFIG_SUFFIXES = (".yaml", ".yml")
_TAR_SUFFIXES = (".tar", ".tgz", ".gz", ".zst")
_ON_HUB = re.compile(
    r"(?P<id>[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)(@(?P<revision>[^\s:]+))?(:(?P<gguf>[^\s:]+))?"
)
_HUB_CACHE = re.compile(r".*/models--([\w.-]+?)--([\w.-]+)/snapshots/[0-9a-f]{40}")
_RANK = "*rank*.engine"


def find_source(text: str, *, kind: str | None = None) -> ConfigFile | None:
    """Find the build config that ``text`` names or stands for; None: it names an engine.

    A model is built as ``kind``, else as the kind that is best on this machine.
    """
    if is_config(text):
        return read_config(text)
    path = Path(text)
    if is_config_url(text):
        page = hub_page(text, "MODEL")
        return None if page is None else _file(page, kind, folder=None)
    if path.is_dir():
        return _of_folder(path.absolute(), kind) if _is_model(path) else None
    if path.is_file():
        return _of_file(path.absolute(), kind) if path.suffix == GGUF else None
    if (page := hub_page(text, "MODEL")) is not None:
        return _file(page, kind, folder=None)
    match = _ON_HUB.fullmatch(text)
    if match is None or path.suffix in _TAR_SUFFIXES:
        return None
    if path.suffix == GGUF and match["gguf"] is None:
        return None
    if match["gguf"] and not match["gguf"].endswith(GGUF):
        raise InvalidInput(name="MODEL", expected="owner/name or owner/name:FILE.gguf", value=text)
    keys = {"model_id": match["id"], "revision": match["revision"], "gguf_file": match["gguf"]}
    return _file(keys, kind, folder=None)


def is_config(text: str) -> bool:
    """Return True if ``text`` names a build config."""
    if is_config_url(text):
        return text.startswith("data:") or text.partition("?")[0].endswith(_CONFIG_SUFFIXES)
    return Path(text).suffix in _CONFIG_SUFFIXES and not Path(text).is_dir()


def best_kind(*, is_gguf: bool = False) -> str:
    """Return the kind of engine that serves a model's own weights, or a GGUF file, best on this machine."""
    has_gpu = bool(visible_gpus())
    able = [
        each
        for each in KINDS.values()
        if each.serves_models
        and (has_gpu or not each.needs_gpu)
        and (not each.runs_gguf or (is_gguf and not has_gpu))
    ]
    for each in able[:-1]:
        if installed_version(_python(each))(each.package):
            return each.name
    return able[-1].name


def missing_environment(chosen: str) -> str | None:
    """Name the kind that would serve faster here than ``chosen``; None if its environment is installed."""
    first = next(kind for kind in KINDS.values() if kind.serves_models)
    if chosen == first.name or not visible_gpus() or installed_version(_python(first))(first.package):
        return None
    remedy = "`make vllm` installs it" if IS_CHECKOUT else f"{ENGINE_PYTHON_VARIABLE} names one"
    return f"{first.name:<12}would be faster on this GPU, but its environment is not here: {remedy}"


def _python(kind: Kind) -> str:
    return engine_python(folder=kind.checkout_environment)


def _of_folder(path: Path, kind: str | None) -> ConfigFile:
    keys: dict[str, Any] = {"model_path": path.name or "."}
    if cached := _HUB_CACHE.fullmatch(str(path)):
        keys["model_id"] = "/".join(cached.groups())
    if not (path / "config.json").exists():
        files = sorted(file.name for file in path.glob(f"*{GGUF}"))
        if len(files) > 1:
            problem = f"it has {len(files)} GGUF files; name one, as in {path.name}/{files[0]}"
            raise ModelUnusable(model=str(path), problem=problem)
        keys["gguf_file"] = files[0]
    return _file(keys, kind, folder=path.parent)


def _of_file(path: Path, kind: str | None) -> ConfigFile:
    keys = {"model_path": path.parent.name or ".", "gguf_file": path.name}
    if _ON_HUB.fullmatch(path.stem):
        keys["model_id"] = path.stem  # Its name.
    return _file(keys, kind, folder=path.parent.parent)


def _file(keys: dict[str, Any], kind: str | None, *, folder: Path | None) -> ConfigFile:
    given = {name: value for name, value in keys.items() if value is not None}
    engine = kind or best_kind(is_gguf="gguf_file" in given)
    config = checked_config({"engine": engine, **given})
    return ConfigFile(config, hf_token=None, folder=folder, notes=())


def _is_model(folder: Path) -> bool:
    """Return True if the folder is a model as it is published, and no engine."""
    markers = [MANIFEST_NAME, *filter(None, (kind.marker_file for kind in KINDS.values()))]
    if any((folder / name).exists() for name in markers) or any(folder.glob(_RANK)):
        return False
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        return any(folder.glob(f"*{GGUF}"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and ("model_type" in config or "architectures" in config)
