"""Content of a TensorRT-LLM config, from its programs' arguments: a frozen ``TrtllmBuild``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from builder.config.config import BuildConfig, ProgramStep
from builder.conversion.quant_algo import quant_algo
from builder.trtllm.flags import BUILD, QUANTIZE, Argument, check_arguments, find_flag, flags_of, program_of
from builder.trtllm.paths import is_same, model_directory
from errors.build_config import ConflictingBuildKeys

_QFORMATS = {
    "fp8": "FP8",
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "int8_wo": "W8A16",
    "int4_wo": "W4A16",
}
_MODEL_FLAGS = ("model_dir", "model-dir", "meta_ckpt_dir", "nemo_ckpt_path", "ckpt_dir")
_OUTPUT_FLAGS = ("output_dir", "output-model-dir")


@dataclass(frozen=True)
class ProgramCall:
    """Program to run: ``args`` are the config's, with the folders that it leaves out."""

    key: str
    program: str
    script: str | None
    output_dir: str
    args: Mapping[str, Argument] = field(hash=False)

    def value(self, name: str) -> Any:
        """Return the argument ``name`` as the program reads it, or the program's default.

        A switch is true or false. An unknown program's argument is returned as given.
        """
        flag = find_flag(self.program, name)
        if flag is None:
            return self.args.get(name)
        names = [each for each in (name, flag.alias) if each is not None and each in self.args]
        if not names:
            return False if flag.is_switch else flag.default
        given = self.args[names[0]]
        if flag.is_switch:
            return given is not False
        if given is None:
            return flag.bare
        return {"int": int, "float": float}.get(flag.type, str)(given)


@dataclass(frozen=True)
class TrtllmBuild:
    """Engine to build. Sizes are in tokens and sequences; quantizations have QuantAlgo's names.

    ``checkpoint`` is the program that makes the checkpoint, None if the model is one: its parallelism, dtype
    and quantization are then unknown. ``dtype`` may be ``auto``: the model's. ``max_seq_len`` counts prompt
    and output; None: the model's positions.
    """

    calls: tuple[ProgramCall, ...]
    checkpoint: ProgramCall | None
    build: ProgramCall
    tp_size: int
    pp_size: int
    cp_size: int
    dtype: str
    quantization: str | None
    kv_cache_quantization: str | None
    max_seq_len: int | None
    fit_lengths: bool

    @property
    def world_size(self) -> int:
        """Number of GPUs that run the engine."""
        return self.tp_size * self.pp_size * self.cp_size * int(self.build.value("auto_parallel"))


def summarize(config: BuildConfig) -> TrtllmBuild:
    """Check the programs' arguments and read them. Raises E1203, E1204 and E1220."""
    if config.build is None:
        raise ConflictingBuildKeys(problem="has no build", remedy="add the step that runs trtllm-build")
    calls = tuple(_call(config, key, step) for key, step in config.program_steps.items())
    checkpoint = _checkpoint(config, calls)
    if checkpoint is not None and "checkpoint_dir" not in calls[-1].args:
        args = {"checkpoint_dir": checkpoint.output_dir, **calls[-1].args}
        calls = (*calls[:-1], replace(calls[-1], args=args))
    build = calls[-1]
    return TrtllmBuild(
        calls=calls,
        checkpoint=checkpoint,
        build=build,
        tp_size=_parallelism(checkpoint, "tp_size", "world-size"),
        pp_size=_parallelism(checkpoint, "pp_size"),
        cp_size=_parallelism(checkpoint, "cp_size"),
        dtype=(checkpoint.value("dtype") if checkpoint else None) or "auto",
        quantization=_quantization(checkpoint) if checkpoint else None,
        kv_cache_quantization=_kv_cache_quantization(checkpoint) if checkpoint else None,
        max_seq_len=build.value("max_seq_len"),
        fit_lengths=config.build.fit_lengths,
    )


def _call(config: BuildConfig, key: str, step: ProgramStep) -> ProgramCall:
    program = program_of(step)
    if (program == BUILD) != (key == "build"):
        problem = f"runs {program} as {key}"
        remedy = "build runs `executable: trtllm-build`, the steps before it a script (convert_checkpoint.py)"
        raise ConflictingBuildKeys(problem=problem, remedy=remedy)
    args = dict(step.args or {})
    check_arguments(program, args, where=f"{key}.args", example_name=config.example_name)
    if flags_of(program) is not None:
        args = _with_folders(config, key, step, args)
    return ProgramCall(key, program, step.script, step.output_dir, args)


def _with_folders(
    config: BuildConfig, key: str, step: ProgramStep, args: dict[str, Argument]
) -> dict[str, Argument]:
    """Add the folders that the config leaves out to ``args``. Raises E1204 if folders contradict."""
    if key != "build" and not _first(args, _MODEL_FLAGS):
        args = {"model_dir": model_directory(config), **args}
    given = _first(args, _OUTPUT_FLAGS)
    if given is None:
        return {**args, "output_dir": step.output_dir}
    if not is_same(given, step.output_dir):
        problem = f"has {key} write to {given}, but {key}.output_dir is {step.output_dir}"
        raise ConflictingBuildKeys(problem=problem, remedy="give both the same folder")
    return args


def _checkpoint(config: BuildConfig, calls: Sequence[ProgramCall]) -> ProgramCall | None:
    """Return the program whose output trtllm-build reads."""
    *earlier, build = calls
    if build.args.get("model_config") is not None and "checkpoint_dir" not in build.args:
        return None
    wanted = str(build.args.get("checkpoint_dir", earlier[-1].output_dir if earlier else ""))
    for call in reversed(earlier):
        if is_same(call.output_dir, wanted):
            return call
    if wanted and is_same(wanted, model_directory(config)):
        return None
    made = f"{' and '.join(call.output_dir for call in earlier) or 'nothing'} is made"
    raise ConflictingBuildKeys(
        problem=f"has trtllm-build read {wanted or 'no checkpoint'}, but {made}",
        remedy="let build.args.checkpoint_dir be the output_dir of convert_to_ft or quantize",
    )


def _first(args: Mapping[str, Argument], names: Sequence[str]) -> str | None:
    return next((str(args[name]) for name in names if args.get(name) is not None), None)


def _parallelism(checkpoint: ProgramCall | None, *names: str) -> int:
    values = [checkpoint.value(name) for name in names] if checkpoint else []
    return max((value for value in values if isinstance(value, int)), default=1)


def _quantization(call: ProgramCall) -> str | None:
    if call.program == QUANTIZE:
        return "MIXED_PRECISION" if call.value("auto_quantize_bits") else _QFORMATS.get(call.value("qformat"))
    return quant_algo(call.value)


def _kv_cache_quantization(call: ProgramCall) -> str | None:
    if call.program == QUANTIZE:
        return {"fp8": "FP8", "int8": "INT8"}.get(call.value("kv_cache_dtype"))
    if call.value("fp8_kv_cache"):
        return "FP8"
    return "INT8" if call.value("int8_kv_cache") or call.value("calibrate_kv_cache") else None
