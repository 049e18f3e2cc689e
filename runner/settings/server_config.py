"""The server configuration YAML (COG_TRITON_CONFIG): the section ``instantiate``.

An unknown key is E1006, which suggests the nearest known key.
"""

import difflib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from errors.coded_error import single_spaced
from errors.settings import InvalidSetting

CONFIG_VARIABLE = "COG_TRITON_CONFIG"
DEFAULT_CONFIG = "config.yaml"

_INSTANTIATE_KEYS = ("base_model", "staging_dest", "weights", "system_prompt", "prompt_template", "server")
_TOP_KEYS = ("instantiate", "build", "version", *_INSTANTIATE_KEYS)
_SERVER_MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
_BUILD_KEYS = ("engine", "model_id", "model_path", "model_tar_url")
"""Keys of a build config, which people call config.yaml too: without being named, it is ignored."""
_SECTION_KEYS = ("template", "output", "args")

ServerArguments = dict[str, dict[str, Any]]
"""Values of ``instantiate.server.<model>.args``, by model."""


def default_config() -> str:
    """Return DEFAULT_CONFIG if this folder has such a file and it is no build config; else nothing."""
    if not Path(DEFAULT_CONFIG).is_file():
        return ""
    with suppress(InvalidSetting):  # ``read_server_config`` raises it again.
        document = _read(DEFAULT_CONFIG)
        if isinstance(document, dict) and not document.keys().isdisjoint(_BUILD_KEYS):
            return ""
    return DEFAULT_CONFIG


def read_server_config(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read the ``instantiate`` section of the server YAML (older files have its keys at top level)."""
    path = environment.get(CONFIG_VARIABLE, "") or default_config()
    if not path:
        return {}
    document = _mapping(Path(path).name, _read(path), (*_TOP_KEYS, *_SERVER_MODELS))
    if "instantiate" in document:
        return _mapping("instantiate", document["instantiate"], _INSTANTIATE_KEYS)
    server = {key: value for key, value in document.items() if key in _SERVER_MODELS}
    rest = {key: value for key, value in document.items() if key in _INSTANTIATE_KEYS}
    return {"server": server, **rest} if server else rest


def _read(path: str) -> object:
    try:
        return yaml.safe_load(Path(path).read_text())
    # NOTE: PyYAML's constructors of tagged values (!!bool, !!timestamp, ...) raise any exception.
    except Exception as exc:
        reason = exc.strerror if isinstance(exc, OSError) else single_spaced(exc)
        raise InvalidSetting(
            name=CONFIG_VARIABLE, expected=f"a readable YAML file ({reason})", value=path
        ) from exc


def server_arguments(config: Mapping[str, Any]) -> ServerArguments:
    """Return ``instantiate.server.<model>.args`` for each Triton model in the section."""
    sections = _mapping("instantiate.server", config.get("server"), _SERVER_MODELS)
    arguments: ServerArguments = {}
    for model, section in sections.items():
        name = f"instantiate.server.{model}"
        arguments[model] = _mapping(f"{name}.args", _mapping(name, section, _SECTION_KEYS).get("args"), None)
    return arguments


def _mapping(name: str, value: object, keys: tuple[str, ...] | None) -> dict[str, Any]:
    """Return ``value`` as a mapping (None: empty). Raises E1006 if it is none or has other ``keys``."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidSetting(name=name, expected="a mapping of keys to values", value=value)
    for key in value:
        if keys is not None and key not in keys:
            near = difflib.get_close_matches(str(key), keys, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise InvalidSetting(
                name=f"a key of {name}", expected=f"one of {', '.join(keys)}{hint}", value=key
            )
    return {str(key): each for key, each in value.items()}
