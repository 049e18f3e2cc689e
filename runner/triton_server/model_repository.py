"""Triton model repository: templates + defaults + the engine + overrides -> a runtime folder.

A template's variable without a default here is left blank: the engine's library then uses its own default. A
key that no template has, and a value that Triton could not parse, are E1006 with the key's name.
"""

import difflib
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.directory import Engine
from engine.kinds import find_kind, supports
from engine.machine.root import SOURCE_ROOT
from engine.tar.manifest import Manifest
from errors.settings import InvalidSetting
from runner.triton_server.model_names import BLS, ENSEMBLE, MODELS, SLOT

TEMPLATES = SOURCE_ROOT / "triton_model_repo"

CPP_BACKEND = "tensorrtllm"
"""NVIDIA's name of its C++ backend."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SLOT_ONLY = re.compile(r"^#.*\n|^.* # slot\n", re.MULTILINE)
_GUIDED = re.compile(r"^.* # guided\n", re.MULTILINE)
_BLS_ONLY = re.compile(r"^.* # bls\n", re.MULTILINE)
_UNQUOTABLE = re.compile(r"[\"\\\x00-\x1f]")

_PARAMETER = re.compile(r'parameters \{ key: "(\w+)" value: \{ string_value: "([^"]+)" \} \}')

_DEFAULTS: dict[str, dict[str, str]] = {
    "preprocessing": {
        "preprocessing_instance_count": "1",
        "tokenizer_type": "auto",
        "add_special_tokens": "true",
        "skip_special_tokens": "true",
        "max_tokens_data_type": "TYPE_UINT32",
    },
    "postprocessing": {"tokenizer_type": "auto", "skip_special_tokens": "true"},
    SLOT: {
        "triton_backend": "python",
        "decoupled_mode": "true",
        "max_queue_delay_microseconds": "0",
        "max_queue_size": "0",
        "batching_strategy": "inflight_fused_batching",
        "max_beam_width": "1",
        "exclude_input_in_output": "true",
        "encoder_input_features_data_type": "TYPE_FP16",
        "engine_start_timeout_s": "1800",
        "engine_hang_timeout_s": "300",
    },
    ENSEMBLE: {"max_tokens_data_type": "TYPE_UINT32"},
}

_NOT_OURS = {
    ("preprocessing", "postprocessing_instance_count"),
    ("postprocessing", "postprocessing_instance_count"),
    ("postprocessing", "preprocessing_instance_count"),
}
"""Keys of the original's configs that have no meaning here: ignored with a warning."""

_NOT_OPTIONS = {
    *("engine_socket", "gpt_model_path", "exclude_input_in_output", "cancellation_check_period_ms"),
    *("engine_start_timeout_s", "engine_hang_timeout_s"),
}
"""The slot's parameters that are not the engine's."""

_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}
_SWITCH = ("true|false", "true or false")
_COUNT = (r"[1-9][0-9]*", "a whole number of at least 1")
_CHECKS = {
    "triton_max_batch_size": _COUNT,
    "preprocessing_instance_count": _COUNT,
    "max_queue_delay_microseconds": (r"[0-9]+", "a whole number of microseconds"),
    "max_queue_size": (r"[0-9]+", "a whole number, 0 for no limit"),
    "decoupled_mode": _SWITCH,
    "exclude_input_in_output": _SWITCH,
    "add_special_tokens": _SWITCH,
    "skip_special_tokens": _SWITCH,
    "max_tokens_data_type": ("TYPE_U?INT32", "TYPE_UINT32 or TYPE_INT32"),
    "triton_backend": ("python|tensorrtllm", "python or tensorrtllm"),
    "encoder_input_features_data_type": ("TYPE_FP16|TYPE_BF16|TYPE_FP32", "TYPE_FP16 or TYPE_BF16"),
    "engine_hang_timeout_s": (r"[0-9]+(\.[0-9]+)?", "a number of seconds, 0 for never"),
    "engine_start_timeout_s": (r"[0-9]+(\.[0-9]+)?", "a number of seconds"),
}
"""Pattern of a value, and what it must be."""
_SHARED = {
    "max_tokens_data_type": ("preprocessing", ENSEMBLE),
    "skip_special_tokens": ("preprocessing", "postprocessing"),
}
"""Keys with one value for the two models that read it, whichever of them it is given for."""


@dataclass(frozen=True)
class Rendered:
    """Facts of the engine in the configuration."""

    is_cpp: bool
    """NVIDIA's C++ backend fills the slot, so there is no engine server."""
    options: Mapping[str, str]
    """The engine's parameters that have a value."""
    start_timeout_s: float
    hang_timeout_s: float


def render(
    engine: Engine,
    target: Path,
    *,
    overrides: Mapping[str, Mapping[str, object]],
    cpp_backend: Path | None = None,
    engine_cache_dir: Path | None = None,
    engine_socket: Path | None = None,
    arrival: Path | None = None,
) -> Rendered:
    """Write a model repository for ``engine`` into ``target``, which is replaced.

    ``overrides``: ``instantiate.server.<model>.args`` of the server configuration, by model. ``cpp_backend``:
    the folder of NVIDIA's C++ backend, which then fills the slot unless ``overrides`` say otherwise.
    ``engine_cache_dir``: where an engine may keep what it compiles; None: where its library wants to.
    ``engine_socket``: where the engine server listens. ``arrival``: the file that announces that the engine
    is complete.
    """
    facts = {
        # Accepted in the arguments of every model; only preprocessing uses them.
        "end_id": "",
        "pad_id": "",
        "triton_max_batch_size": str(engine.manifest.max_batch_size or 64),
        "tokenizer_dir": str(engine.path),
        "engine_dir": str(engine.path),
        "engine_arrival": _text(arrival),
        "engine_cache_dir": _text(engine_cache_dir),
        "engine_socket": _text(engine_socket),
        "engine_kind": engine.manifest.engine_kind,
    }
    templates = {model: (TEMPLATES / model / "config.pbtxt").read_text() for model in MODELS}
    values = {
        model: dict.fromkeys(_VARIABLE.findall(templates[model]), "") | _DEFAULTS[model] | facts
        for model in MODELS
    }
    if "max_batch_size" not in overrides.get(SLOT, {}):
        values[SLOT]["max_batch_size"] = _batch_size(engine.manifest)
    if cpp_backend is not None:
        values[SLOT]["triton_backend"] = CPP_BACKEND
        values[SLOT]["executor_worker_path"] = str(cpp_backend / "trtllmExecutorWorker")
    _override(values, overrides)
    is_cpp = values[SLOT]["triton_backend"] == CPP_BACKEND
    if is_cpp:
        templates = _cpp_templates(templates, values[SLOT])
    templates[BLS] = templates[ENSEMBLE].replace('name: "ensemble"', f'name: "{BLS}"')
    templates[ENSEMBLE] = _BLS_ONLY.sub("", templates[ENSEMBLE])
    values[BLS] = values[ENSEMBLE]
    configs = {model: _fill(model, template, values[model]) for model, template in templates.items()}
    _write(target, configs, without_program={ENSEMBLE, BLS, *([SLOT] if is_cpp else [])})
    found = _PARAMETER.findall(configs[SLOT])
    options = {name: value for name, value in found if name not in _NOT_OPTIONS}
    if supports(engine.manifest.engine_kind, "max_queue_size"):
        options["max_queue_size"] = values[SLOT]["max_queue_size"]
    start_timeout_s, hang_timeout_s = (
        float(values[SLOT][name]) for name in ("engine_start_timeout_s", "engine_hang_timeout_s")
    )
    return Rendered(is_cpp, options, start_timeout_s, hang_timeout_s)


def _batch_size(manifest: Manifest) -> str:
    """Return the engine's batch size. In an engine.tar of an earlier version it may be above the limit."""
    built, limit = manifest.max_batch_size, find_kind(manifest.engine_kind).max_sequences
    if limit is None or built is None or built <= limit:
        return _text(built)
    print(
        f"engine: max_batch_size is {built}, but a {manifest.engine_kind} engine runs at most {limit} "
        f"sequences at once; it runs {limit}",
        file=sys.stderr,
    )
    return str(limit)


def _cpp_templates(templates: Mapping[str, str], slot: Mapping[str, str]) -> dict[str, str]:
    """Return the templates without inputs and outputs that NVIDIA's C++ backend does not have."""
    if slot["decoupled_mode"] == "false":
        raise InvalidSetting(
            name=f"instantiate.server.{SLOT}.args.decoupled_mode",
            expected="true: with NVIDIA's C++ backend all requests are streamed by Triton",
            value="false",
        )
    left = {model: _SLOT_ONLY.sub("", template) for model, template in templates.items()}
    if slot["guided_decoding_backend"]:
        return left
    # NOTE: NVIDIA's backend would ignore guides; without these inputs Triton refuses them.
    return {model: _GUIDED.sub("", template) for model, template in left.items()}


def _write(target: Path, configs: Mapping[str, str], without_program: set[str]) -> None:
    if target.exists():
        shutil.rmtree(target)
    for model, config in configs.items():
        version = target / model / "1"
        version.mkdir(parents=True)
        (target / model / "config.pbtxt").write_text(config)
        if model not in without_program:
            (version / "model.py").write_text(_model_py(model))


def _override(values: dict[str, dict[str, str]], overrides: Mapping[str, Mapping[str, object]]) -> None:
    for model, arguments in overrides.items():
        for key, value in arguments.items():
            _override_one(values, model, key, _text(value))
    for key, models in _SHARED.items():
        for model, other in (models, models[::-1]):
            if key in overrides.get(model, {}):
                values[other][key] = values[model][key]


def _override_one(values: dict[str, dict[str, str]], model: str, key: str, value: str) -> None:
    if model not in values or (model, key) in _NOT_OURS:
        print(f"server config: {model}.{key} has no meaning here and is not used", file=sys.stderr)
        return
    if key not in values[model]:
        near = difflib.get_close_matches(key, values[model], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidSetting(
            name=f"instantiate.server.{model}.args", expected=f"of keys that the model has{hint}", value=key
        )
    if key in _CHECKS:
        pattern, expected = _CHECKS[key]
        if "true" in pattern:
            value = _BOOLEANS.get(value.lower(), value)
        if not re.fullmatch(pattern, value):
            raise InvalidSetting(
                name=f"instantiate.server.{model}.args.{key}", expected=expected, value=value
            )
    values[model][key] = value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _fill(model: str, template: str, values: Mapping[str, str]) -> str:
    def fill(match: re.Match[str]) -> str:
        value = values[match[1]]
        if _UNQUOTABLE.search(value):
            raise InvalidSetting(
                name=f"instantiate.server.{model}.args.{match[1]}",
                expected="without quotes, backslashes and line breaks",
                value=value,
            )
        return value

    return _VARIABLE.sub(fill, template)


def _model_py(model: str) -> str:
    """Return Triton's entry point of a model, which imports our module from any working folder."""
    module = "slot.model" if model == SLOT else f"triton_server.models.{model}"
    return (
        "import sys\n\n"
        f"sys.path.insert(0, {str(SOURCE_ROOT)!r})\n\n"
        f"from runner.{module} import TritonPythonModel  # noqa: E402, F401\n"
    )
