"""Check that a model fits this machine, and show it as a table before anything large is downloaded."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.config.config import BuildConfig
from builder.config.file import ConfigFile
from builder.sizes.fit import Demand, MainMemory, demand, fit_gpus, main_memory
from builder.sizes.memory import GpuModel, weight_bytes
from builder.sizes.model_shape import UnknownShape, shape_of
from builder.sizes.precision import measured, num_parameters, running_precision, stored_precision
from builder.survey import Survey
from builder.weights.files import need_space
from engine.kinds import KINDS
from engine.machine.gpu import Gpu, visible_gpus
from engine.pooling import MODULES_NAME
from engine.words import count_in_words, download_time, in_words
from errors.build import NotEnoughSpace
from errors.build_config import ModelDoesNotFit
from errors.coded_error import CodedError

_NEXT_SIZE = "choose a smaller or a quantized model"


@dataclass
class MachineFit:
    """``config`` adapted to this machine; ``problem``: why the model does not fit."""

    config: BuildConfig
    model_name: str
    rows: dict[str, str] = field(default_factory=dict)
    problem: CodedError | None = None

    def lines(self) -> list[str]:
        return [f"{name:<12}{text}" for name, text in self.rows.items()]


def fit_here(file: ConfigFile, found: Survey, folder: Path) -> MachineFit:
    """Fit the model ``found``, which will lie in ``folder``, to this machine."""
    config = file.config
    fit = MachineFit(config, file.model_name)
    at = f" at {found.revision[:12]}" if found.revision else ""
    fit.rows["model"] = fit.model_name + at
    fit.rows["engine"] = f"{config.engine_kind}, on {KINDS[config.engine_kind].runs_on}"
    fit.rows["weights"] = in_words(found.total_bytes)
    embeds = MODULES_NAME in found.sizes_bytes
    if embeds:
        fit.rows["task"] = "embeddings, at /v1/embeddings"
    try:
        if KINDS[config.engine_kind].serves_models and found.values:
            _fit_memory(fit, found, embeds=embeds)
    except UnknownShape as exc:
        fit.rows["memory"] = f"not known: the model's config.json has no {exc}"
    _fit_disk(fit, found, folder)
    return fit


def _fit_memory(fit: MachineFit, found: Survey, *, embeds: bool) -> None:
    values, config = found.values, fit.config
    shape = shape_of(values)
    gpus = () if KINDS[config.engine_kind].runs_gguf else visible_gpus()
    stored = measured(shape, stored_precision(values), found.weight_bytes, found.weight_dtype)
    fit.rows["model"] += f", {count_in_words(num_parameters(shape, stored))} parameters"
    fit.rows["weights"] = f"{in_words(weight_bytes(shape, stored))} ({stored.words})"
    needs_gpu = KINDS[config.engine_kind].needs_gpu
    precision = running_precision(stored, config.dtype, on_cpu=not gpus, half=needs_gpu)
    demanded = demand(shape, precision, values, config.max_seq_len)
    if gpus:
        _fit_on_gpus(fit, demanded, gpus if needs_gpu else gpus[:1])
    elif not needs_gpu:
        _fit_in_main_memory(fit, main_memory(shape, precision, values, embeds=embeds))


def _fit_in_main_memory(fit: MachineFit, needed: MainMemory) -> None:
    fit.rows["engine"] = f"{fit.config.engine_kind}, on the CPU as {needed.dtype}"
    fit.rows["memory"] = str(needed)
    if not needed.fits:
        fit.problem = ModelDoesNotFit(
            model=fit.model_name,
            needed=f"{in_words(needed.least_bytes)} of memory as {needed.dtype}",
            present=f"this machine has {in_words(needed.present_bytes)}",
            remedy=f"{_NEXT_SIZE}, or a machine with more memory or a GPU",
        )


def _fit_on_gpus(fit: MachineFit, demanded: Demand, gpus: tuple[Gpu, ...]) -> None:
    config = fit.config
    known = [GpuModel(gpu.name or "GPU", gpu.total_bytes) for gpu in gpus if gpu.total_bytes is not None]
    if len(known) < len(gpus) or config.vllm:
        return  # What the GPUs have is not known, or the config's author has decided.
    free = [gpu.free_bytes for gpu in gpus]
    fitting = fit_gpus(demanded, known, free)
    words = f"{len(known)} x {known[0].name} ({in_words(known[0].memory_bytes)})"
    if fitting is None:
        fit.rows["engine"] = f"{config.engine_kind}, on {words}"
        fit.rows["memory"] = f"{in_words(demanded.weight_bytes(1))} of weights, and the KV cache: too much"
        present = " and ".join(in_words(each) for each in free if each is not None)
        fit.problem = ModelDoesNotFit(
            model=fit.model_name,
            needed=f"{in_words(demanded.weight_bytes(1))} of GPU memory for its weights, beside its KV cache",
            present=f"of {words}, {present} are free" if present else f"there are {words}",
            remedy=f"{_NEXT_SIZE}, or more or larger GPUs, or end what else uses them",
        )
        return
    fit.rows["engine"] = f"{config.engine_kind}, on {fitting.gpus} x {known[0].name}"
    weights = in_words(demanded.weight_bytes(fitting.gpus))
    fit.rows["memory"] = (
        f"{weights} of weights{' per GPU' if fitting.gpus > 1 else ''}, room for {fitting.kv_tokens:,} "
        "tokens of KV cache"
    )
    changes: dict[str, Any] = {}
    if KINDS[config.engine_kind].needs_gpu:
        arguments: dict[str, Any] = {"tensor_parallel_size": fitting.gpus} if fitting.gpus > 1 else {}
        if fitting.is_shared:
            arguments["gpu_memory_utilization"] = fitting.share
        changes["vllm"] = arguments or None
    length = demanded.max_seq_len(fitting.kv_tokens)
    if length is not None:
        changes["max_seq_len"] = length
        fit.rows["sequence"] = f"{length:,} tokens, in place of the model's {demanded.limit:,}, to fit"
    fit.config = config.model_copy(update=changes)


def _fit_disk(fit: MachineFit, found: Survey, folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    missing = found.missing_bytes
    if missing:
        fit.rows["download"] = f"{in_words(missing)}, about {download_time(missing)} at 1 Gbit/s"
    fit.rows["disk"] = f"{in_words(found.disk_bytes)} of {in_words(free_bytes)} free in {folder}"
    try:
        need_space(folder, found.disk_bytes, purpose="the model")
    except NotEnoughSpace as exc:
        fit.problem = fit.problem or exc
