"""The exact command of each program: TensorRT-LLM's own script where it is here, else ours."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.config.config import BuildConfig
from builder.trtllm.flags import BUILD, CONVERT, QUANTIZE, argv
from builder.trtllm.summary import ProgramCall, TrtllmBuild
from builder.trtllm.workspace import check_output, relative, relative_args
from engine.machine.python import engine_python
from errors.build_config import ScriptUnavailable

TRTLLM_DIR_VARIABLE = "TRTLLM_DIR"

_BUILT_IN = Path(__file__).resolve().parents[1] / "conversion"
NEEDS_SCRIPT: Mapping[str, frozenset[str]] = {
    CONVERT: frozenset(
        {
            "meta_ckpt_dir", "nemo_ckpt_path", "nemo_rename_key", "use_qserve", "save_config_only",
            "multiple_of", "ffn_dim_multiplier", "vocab_size", "n_positions", "n_layer", "n_head",
            "n_kv_head", "n_embd", "inter_size", "hidden_act", "rms_norm_eps", "rotary_base",
            "moe_num_experts", "moe_top_k", "moe_renorm_mode", "use-int8-weight-only-embedding",
        }
    ),
    QUANTIZE: frozenset({"nemo_ckpt_path"}),
}  # fmt: skip
"""What the built-in converters can't do: formats of weights, and models, that only the scripts know."""
_IS_DONE_BY_LIBRARY: Mapping[str, str] = {"ckpt-type": "hf", "ckpt_type": "hf", "checkpoint_type": "hf"}
"""Flags of which the built-in converter knows one value."""


@dataclass(frozen=True)
class Command:
    """``words`` run in the workspace; ``output_dir`` is relative to it."""

    call: ProgramCall
    words: tuple[str, ...]
    output_dir: str
    script: Path | None

    @property
    def key(self) -> str:
        return self.call.key

    @property
    def title(self) -> str:
        return f"{self.key}: {shlex.join(self.words)}"

    @property
    def calibrates(self) -> bool:
        """Whether it may need samples from the Hub; of a script that is not known, it may."""
        if self.call.program == CONVERT:
            return self.call.value("smoothquant") is not None or bool(self.call.value("int8_kv_cache"))
        return self.call.program != BUILD

    @property
    def script_digest(self) -> str | None:
        """SHA-256 of the script, for what it does belongs to what was asked for."""
        return None if self.script is None else hashlib.sha256(self.script.read_bytes()).hexdigest()


def commands_of(config: BuildConfig, build: TrtllmBuild) -> list[Command]:
    """A command for each program of ``build``; raises E1203 for paths that lead out and E1232 for scripts."""
    return [_command(config, call) for call in build.calls]


def _command(config: BuildConfig, call: ProgramCall) -> Command:
    check_output(call)
    script = None if call.program == BUILD else _find_script(config, call)
    words = [trtllm_build()] if script is None else [engine_python(), str(script)]
    return Command(
        call=call,
        words=(*words, *argv(relative_args(call), call.program)),
        output_dir=relative(call.output_dir, f"{call.key}.output_dir"),
        script=script,
    )


def trtllm_build() -> str:
    """The program's path: beside the engine environment's Python, else on PATH."""
    beside = Path(engine_python()).absolute().parent / BUILD
    return str(beside) if beside.exists() else shutil.which(BUILD) or str(beside)


def _find_script(config: BuildConfig, call: ProgramCall) -> Path:
    assert call.script is not None, "only trtllm-build has none"
    trtllm_dir = os.environ.get(TRTLLM_DIR_VARIABLE)
    if trtllm_dir and (found := _in_examples(Path(trtllm_dir) / "examples", config, call)) is not None:
        return found
    if call.program not in NEEDS_SCRIPT:
        raise _unavailable(config, call, trtllm_dir, "the built-in converter knows it not")
    for name, value in call.args.items():
        if value is False or _is_known(call, name, value):
            continue
        raise _unavailable(config, call, trtllm_dir, f"the built-in converter has no {name}")
    return _BUILT_IN / call.program


def _is_known(call: ProgramCall, name: str, value: object) -> bool:
    if name in _IS_DONE_BY_LIBRARY:
        return value == _IS_DONE_BY_LIBRARY[name]
    return name not in NEEDS_SCRIPT[call.program]


def _in_examples(examples: Path, config: BuildConfig, call: ProgramCall) -> Path | None:
    """The script below ``examples``; links must not lead out of it."""
    assert call.script is not None
    for folder in filter(None, (config.example_name, "quantization" if call.program == QUANTIZE else None)):
        found = (examples / folder / call.script).resolve()
        if found.is_file() and found.is_relative_to(examples.resolve()):
            return found
    return None


def _unavailable(
    config: BuildConfig, call: ProgramCall, trtllm_dir: str | None, problem: str
) -> ScriptUnavailable:
    place = f"examples/{config.example_name or '<example_name>'}/{call.script}"
    remedy = (
        f"put it into {Path(trtllm_dir) / place}"
        if trtllm_dir
        else f"set {TRTLLM_DIR_VARIABLE} to TensorRT-LLM's source, which has {place}"
    )
    return ScriptUnavailable(key=call.key, script=call.script, problem=problem, remedy=remedy)
