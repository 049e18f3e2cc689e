"""Read a build config: YAML text from a file or URL -> a checked ``BuildConfig`` and, separately, its token.

Errors of pydantic and PyYAML become coded errors here, which never quote the file: it may have a token.
"""

import base64
import difflib
import io
import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import yaml
from pydantic import BaseModel, SecretStr, ValidationError

from builder.config.config import BuildConfig, BuildStep, LoraAdapter, PacedEngine, ProgramStep, Target, shown
from builder.config.hub_page import hub_page
from builder.trtllm.old.config import migrate
from engine.download.body import Transfer
from engine.download.fetch import Source, fetch
from engine.redact import redact_url
from errors.build_config import (
    BuildConfigUnreadable,
    ConflictingBuildKeys,
    InvalidBuildValue,
    UnknownBuildKey,
)
from errors.coded_error import CodedError
from errors.download import AddressRefused
from errors.requests import InvalidInput

MAX_CONFIG_BYTES = 1 << 20
MAX_CONFIG_NODES = 10_000
_TRANSFER = Transfer(connections=1, attempts=3, head_bytes=MAX_CONFIG_BYTES + 1)

TOKEN_KEY = "hf_token"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|data:")
_PLACEHOLDER = re.compile(r"<?your[ _-][a-z _-]+>?", re.IGNORECASE)
_SECTIONS: dict[str, type[BaseModel]] = {
    "convert_to_ft": ProgramStep,
    "quantize": ProgramStep,
    "build": BuildStep,
    "target": Target,
    "paced": PacedEngine,
    "lora": LoraAdapter,
}
_OTHER_FILES = {
    "this is a runner's server YAML: name it in COG_TRITON_CONFIG, or give it to `cog-triton instantiate`.": (
        *("instantiate", "base_model", "staging_dest", "weights", "system_prompt", "prompt_template"),
        *("ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls"),
    ),
    "this is a model's config.json: give the model's folder.": ("model_type", "architectures"),
    "this is a Truss config, which has other keys: write a build config (docs/build-config.md).": (
        *("trt_llm", "model_metadata", "model_framework", "model_class_name", "model_module_dir"),
        *("bundled_packages_dir", "python_version", "external_package_dirs", "data_dir"),
    ),
}
"""Kind of a file that has one of the keys."""
_UNKNOWN = ("extra_forbidden", "invalid_key")
_EXPECTED = {
    "string_type": "text (put it in quotes)",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "value_error": "{error}",
}


@dataclass(frozen=True)
class ConfigFile:
    """A build config that was read, migrated and checked, and a note for each change made to it.

    ``folder`` is the file's folder, None for a URL.
    """

    config: BuildConfig
    hf_token: SecretStr | None
    folder: Path | None
    notes: tuple[str, ...]

    @property
    def model_name(self) -> str:
        """Name for people. A model in the file's own folder has the folder's name."""
        path = self.config.model_path
        if self.config.model_id is None and self.folder and path and Path(path).name in ("", ".."):
            return (self.folder / path).resolve().name
        return self.config.model_name


def read_config(source: str | Path, *, only_public: bool = False) -> ConfigFile:
    """Read and check the config at ``source``, a path or an http(s) URL. Raises 12xx errors.

    ``only_public``: refuse a URL that leads to a private address.
    """
    folder = None if is_config_url(source) else Path(source).absolute().parent
    return parse_config(read_text(source, only_public=only_public), shown=shown_source(source), folder=folder)


def read_text(source: str | Path, *, only_public: bool = False) -> bytes:
    """Read the file at ``source`` (path, http(s) or data URL). Raises E1201 and E1005."""
    shown, text, buffer = shown_source(source), bytearray(), memoryview(bytearray(64 << 10))
    try:
        with _open(source, only_public) as stream:
            while len(text) <= MAX_CONFIG_BYTES and (count := stream.readinto(buffer)):
                text += buffer[:count]
    except (AddressRefused, InvalidInput):
        raise
    except IsADirectoryError as exc:
        no_model = "it is a folder without a model (a config.json with a model_type, or a .gguf file)"
        raise BuildConfigUnreadable(source=shown, reason=no_model) from exc
    except OSError as exc:
        raise BuildConfigUnreadable(source=shown, reason=exc.strerror or type(exc).__name__) from exc
    except CodedError as exc:
        status = exc.facts.get("status")
        reason = exc.facts.get("reason") if status is None else f"HTTP {status}"
        raise BuildConfigUnreadable(source=shown, reason=reason) from exc
    if len(text) > MAX_CONFIG_BYTES:
        raise BuildConfigUnreadable(source=shown, reason=f"it is larger than {MAX_CONFIG_BYTES} bytes")
    return bytes(text)


def _open(source: str | Path, only_public: bool) -> io.BufferedReader | io.BytesIO | Source:
    if not is_config_url(source):
        return Path(source).open("rb")
    if str(source).startswith("data:"):
        return io.BytesIO(_data_of(str(source)))
    return fetch(source, only_public=only_public, transfer=_TRANSFER)


def is_config_url(source: str | Path) -> bool:
    return isinstance(source, str) and _URL.match(source) is not None


def _data_of(url: str) -> bytes:
    """Decode a data URL (RFC 2397)."""
    header, comma, data = url.partition(",")
    content = unquote_to_bytes(data)
    try:
        if not comma:
            raise ValueError("it has no comma")
        # NOTE: decode strictly: urllib's own reader of data URLs drops what is not base64.
        return base64.b64decode(content, validate=True) if header.endswith(";base64") else content
    except ValueError as exc:
        raise InvalidInput(name="config", expected="a URL with data in it", value=url[:100]) from exc


def parse_config(text: bytes, *, shown: str, folder: Path | None) -> ConfigFile:
    """Check the YAML ``text`` of a config that errors call ``shown``."""
    keys = _parse_yaml(text, shown)
    token, notes = _take_token(keys)
    if keys.pop("merge", None) is not None:
        notes = (*notes, "merge: ignored (cog-trt-llm added it to the configs that it packed)")
    _check_is_build_config(keys)
    keys, changes = migrate(keys)
    if isinstance(model_id := keys.get("model_id"), str) and (page := hub_page(model_id, "model_id")):
        keys = {**page, **keys, "model_id": page["model_id"]}
    if keys.get("model_id") is not None and keys.get("model_path") is not None:
        problem = "gives both model_id and model_path"
        raise ConflictingBuildKeys(problem=problem, remedy="leave out the one that is not meant")
    return ConfigFile(checked_config(keys), token, folder, notes + changes)


def checked_config(keys: dict[Any, Any]) -> BuildConfig:
    try:
        return BuildConfig.model_validate(keys)
    except ValidationError as exc:
        raise _translated(exc) from None  # NOTE: pydantic's text repeats values


def _check_is_build_config(keys: dict[Any, Any]) -> None:
    for remedy, others in _OTHER_FILES.items():
        if found := next((key for key in others if key in keys), None):
            raise UnknownBuildKey(key=found, where="the build config", remedy=remedy)


def checked_token(token: str, *, key: str = TOKEN_KEY) -> SecretStr | None:
    """Strip ``token``. Return None if it is empty. Errors do not contain it."""
    stripped = token.strip()
    if not re.fullmatch(r"[!-~]*", stripped):
        raise InvalidBuildValue(key=key, expected="a Hugging Face token", value="something else (not shown)")
    return SecretStr(stripped) if stripped else None


def shown_source(source: str | Path) -> str:
    if str(source).startswith("data:"):
        return "in the data URL"
    return redact_url(str(source)) if is_config_url(source) else str(source)


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys, of which PyYAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag != "tag:yaml.org,2002:merge" and isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem="duplicate key", problem_mark=key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


def _parse_yaml(text: bytes, shown: str) -> dict[Any, Any]:
    try:
        keys = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - a SafeLoader
    # NOTE: PyYAML's constructors of tagged values (!!bool, !!timestamp, ...) raise any exception.
    except Exception as exc:  # noqa: BLE001
        raise BuildConfigUnreadable(source=shown, reason=_yaml_problem(exc)) from None
    if not isinstance(keys, dict):
        kind = "empty" if keys is None else f"a {type(keys).__name__}"
        raise BuildConfigUnreadable(source=shown, reason=f"a mapping of keys is expected, but it is {kind}")
    if not _is_small(keys):
        raise BuildConfigUnreadable(source=shown, reason=f"it expands to more than {MAX_CONFIG_NODES} values")
    return keys


def _yaml_problem(exc: Exception) -> str:
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        mark, problem = exc.problem_mark, str(exc.problem).split("'")[0].strip()  # in quotes: the file's text
        return f"{problem} in line {mark.line + 1}, column {mark.column + 1}"
    return "it is not readable YAML text in UTF-8"


def _is_small(value: object) -> bool:
    """Return True if ``value`` has at most MAX_CONFIG_NODES parts, aliases counted each time."""
    pending, count = [value], 0
    while pending and count <= MAX_CONFIG_NODES:
        part, count = pending.pop(), count + 1
        if isinstance(part, dict):
            pending += [*part.keys(), *part.values()]
        elif isinstance(part, (list, tuple, set)):
            pending += part
    return not pending


def _take_token(keys: dict[Any, Any]) -> tuple[SecretStr | None, tuple[str, ...]]:
    """Remove and return the token, and a note if it is ``your_token_here``, which the Hub rejects."""
    token = keys.pop(TOKEN_KEY, None)
    if token is None:
        return None, ()
    if _PLACEHOLDER.fullmatch(str(token)):
        return None, (f"{TOKEN_KEY}: ignored, it is a placeholder",)
    if not isinstance(token, str):
        raise InvalidBuildValue(key=TOKEN_KEY, expected="text (put it in quotes)", value="not shown")
    return checked_token(token), ()


def _translated(exc: ValidationError) -> UnknownBuildKey | InvalidBuildValue | ConflictingBuildKeys:
    # NOTE: a misspelt key comes first, as the correct key is then reported as missing too.
    problem = min(exc.errors(include_url=False), key=lambda each: each["type"] not in _UNKNOWN)
    path = [str(part) for part in problem["loc"] if part != "[key]"]
    key = ".".join(path)
    if problem["type"] in _UNKNOWN:
        return _unknown_key(path)
    if problem["type"] == "missing":
        return ConflictingBuildKeys(problem=f"lacks {key}", remedy=f"add {path[-1]} under {path[0]}")
    expected = _EXPECTED.get(problem["type"], problem["msg"]).format(**problem.get("ctx", {}))
    return InvalidBuildValue(key=key, expected=expected, value=_shown(problem["input"]))


def _unknown_key(path: list[str]) -> UnknownBuildKey:
    *section, key = path
    where = section[0] if section else "the build config"
    names = list(_SECTIONS[where].model_fields) if section else [*BuildConfig.model_fields, TOKEN_KEY]
    nearest = difflib.get_close_matches(key, names, n=1)
    remedy = f"did you mean {nearest[0]}?" if nearest else f"its keys are {', '.join(sorted(names))}."
    return UnknownBuildKey(key=key, where=where, remedy=remedy)


def _shown(value: object) -> str:
    """Return the text, or only the type of a mapping or list, as it may contain a token."""
    if isinstance(value, (dict, list, set)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return shown(value)
