"""Command line of each program: TensorRT-LLM's own script where there is one, else the built-in one."""

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.config.config import BuildConfig
from builder.trtllm.flags import BUILD, CONVERT, QUANTIZE, argv, find_flag
from builder.trtllm.summary import ProgramCall, TrtllmBuild
from builder.trtllm.workspace import check_output, relative, relative_args
from builder.weights.model_files import looks
from engine.machine.python import engine_python
from errors.build_config import ScriptUnavailable

TRTLLM_DIR_VARIABLE = "TRTLLM_DIR"

_BUILT_IN = Path(__file__).resolve().parents[1] / "conversion"
_CHECKPOINT_TYPES = ("ckpt-type", "ckpt_type", "checkpoint_type")
"""Flags of which the built-in converter supports one value: hf."""
_WITHOUT_EFFECT = frozenset(
    {
        "model_dir", "model-dir", "ckpt_dir", "output_dir", "output-model-dir", "checkpoint_dir", "workers",
        "log_level", "output_timing_cache", "monitor_memory",
    }
)  # fmt: skip
"""Arguments that do not change the result, only where or how it is made."""


@dataclass(frozen=True)
class Command:
    """Command of a program: ``words`` run in the workspace; ``output_dir`` is relative to it."""

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
        """True if it may download calibration samples from the Hub, as any unknown script may."""
        if self.call.program == CONVERT:
            return self.call.value("smoothquant") is not None or bool(self.call.value("int8_kv_cache"))
        return self.call.program != BUILD

    def cache_facts(self) -> dict[str, Any]:
        """Return what determines the result: the program and the arguments that differ from its defaults."""
        facts: dict[str, Any] = {"program": self.call.program}
        for name, given in self.call.args.items():
            flag = find_flag(self.call.program, name)
            value = given if flag is None else self.call.value(name)
            if name not in _WITHOUT_EFFECT and (flag is None or value not in (flag.default, False)):
                facts[f"args.{flag.name if flag is not None else name}"] = value
        if self.script is not None:
            facts["script"] = hashlib.sha256(self.script.read_bytes()).hexdigest()[:16]
        return {f"config: {self.key}.{name}": value for name, value in facts.items()}


def commands_of(config: BuildConfig, build: TrtllmBuild) -> dict[str, Command]:
    """Return each program's command, by key. Raises E1232, and E1203 for paths outside the workspace."""
    return {call.key: _command(config, call) for call in build.calls}


def cache_facts(
    config: BuildConfig, commands: Iterable[Command], inputs: Mapping[str, Path]
) -> dict[str, Any]:
    """Return what determines the result of ``commands``: equal facts give an equal checkpoint or engine."""
    facts = {name: value for command in commands for name, value in command.cache_facts().items()}
    facts |= {f"config: inputs.{name}": looks(path) for name, path in inputs.items()}
    if config.weight_format is not None:
        facts["config: weight_format"] = config.weight_format
    if config.trust_remote_code:
        facts["config: trust_remote_code"] = True
    return facts


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
    """Return the program's path: in the folder of the engine environment's Python, else on PATH."""
    beside = Path(engine_python()).absolute().parent / BUILD
    return str(beside) if beside.exists() else shutil.which(BUILD) or str(beside)


def _find_script(config: BuildConfig, call: ProgramCall) -> Path:
    assert call.script is not None, "only trtllm-build has none"
    trtllm_dir = os.environ.get(TRTLLM_DIR_VARIABLE)
    if trtllm_dir and (found := _in_examples(Path(trtllm_dir) / "examples", config, call)) is not None:
        return found
    if (problem := _not_built_in(call)) is None:
        return _BUILT_IN / call.program
    place = f"examples/{config.example_name or '<example_name>'}/{call.script}"
    remedy = (
        f"put it into {Path(trtllm_dir) / place}"
        if trtllm_dir
        else f"set {TRTLLM_DIR_VARIABLE} to TensorRT-LLM's source, which has {place}"
    )
    raise ScriptUnavailable(key=call.key, script=call.script, problem=problem, remedy=remedy)


def _not_built_in(call: ProgramCall) -> str | None:
    """Return why a built-in converter can't run ``call``; None if it can."""
    if call.program not in (CONVERT, QUANTIZE):
        return "the built-in converter does not replace it"
    for name, value in call.args.items():
        flag = find_flag(call.program, name)
        needs_script = flag is not None and flag.needs_script
        if value is not False and (needs_script or (name in _CHECKPOINT_TYPES and value != "hf")):
            return f"the built-in converter has no {name}"
    return None


def _in_examples(examples: Path, config: BuildConfig, call: ProgramCall) -> Path | None:
    """Find the script below ``examples``. Links that lead out of that folder are ignored."""
    assert call.script is not None
    for folder in filter(None, (config.example_name, "quantization" if call.program == QUANTIZE else None)):
        found = (examples / folder / call.script).resolve()
        if found.is_file() and found.is_relative_to(examples.resolve()):
            return found
    return None
