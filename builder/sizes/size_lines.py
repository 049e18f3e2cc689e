"""Lines of a plan about a model's sizes: parameters, weights, KV cache, and what it fits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.sizes.fit import GPU_COUNTS, Demand, MemoryArguments, demand, fit_gpus, main_memory
from builder.sizes.memory import (
    GIB,
    GpuModel,
    Precision,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    weight_bytes,
)
from builder.sizes.model_shape import ModelShape, UnknownShape, shape_of
from builder.sizes.precision import measured, num_parameters, running_precision, stored_precision
from engine.machine.gpu import Gpu, visible_gpus
from engine.words import count_in_words, in_words

_MARKET = {24: 22.5, 40: 39.4, 48: 44.9, 80: 79.2, 141: 139.8}
"""Memory of common GPUs: GB as sold, GiB as the driver reports."""


def size_lines(
    values: Mapping[str, Any],
    dtype: str | None,
    max_seq_len: int | None,
    *,
    needs_gpu: bool,
    embeds: bool,
    section: str = "vllm",
    batch_size: int | None = None,
    file_bytes: int | None = None,
    file_dtype: str | None = None,
    arguments: MemoryArguments | None = None,
) -> list[str]:
    """Return a plan's lines about sizes, for the precision that this machine would run, and for common GPUs.

    ``section``: of the build config, which has the number of GPUs. ``batch_size``: None for the default.
    ``file_bytes``, ``file_dtype``: see ``precision.measured``. Without them, a model of a family whose
    parameters config.json does not tell has no sizes.
    """
    try:
        shape = shape_of(values)
    except UnknownShape as exc:
        return [f"sizes are not known: the model's config.json has no {exc}"]
    stored = measured(shape, stored_precision(values), file_bytes, file_dtype)
    if not shape.is_known and file_bytes is None and stored.gguf_type is None:
        remedy = "leave out --model-config, and the sizes of its files tell"
        return [
            f"sizes are not known: config.json does not tell those of {shape.model_type} models; {remedy}"
        ]
    gpus = () if stored.gguf_type is not None else visible_gpus()
    arguments = arguments or MemoryArguments()
    running = running_precision(stored, dtype, on_cpu=not needs_gpu and not gpus, half=needs_gpu)
    running = arguments.applied(running)
    has_more = file_bytes is None and ("text_config" in values or "vision_config" in values)
    lines = _weight_lines(shape, stored, running, None if embeds else max_seq_len, has_more)
    if gpus:
        demanded = demand(shape, running, values, max_seq_len, arguments)
        lines.append(f"memory        {_verdict(demanded, gpus if needs_gpu else gpus[:1])}")
    elif needs_gpu:
        lines.append("memory        does not fit here: there is no NVIDIA GPU")
    else:
        memory = main_memory(shape, running, values, embeds=embeds, batch_size=batch_size)
        lines.append(f"memory        {memory}")
    if embeds or stored.gguf_type is not None:
        return lines
    on_gpu = arguments.applied(running_precision(stored, dtype, on_cpu=False, half=True))
    return [*lines, *_market_lines(demand(shape, on_gpu, values, max_seq_len, arguments), section)]


def _verdict(demanded: Demand, gpus: Sequence[Gpu]) -> str:
    """Tell whether a model fits this machine's GPUs, as they are now."""
    known = [GpuModel(gpu.name or "GPU", gpu.total_bytes) for gpu in gpus if gpu.total_bytes is not None]
    if len(known) < len(gpus):
        return "not known whether it fits here: the GPUs' memory is not"
    fitting = fit_gpus(demanded, known, [gpu.free_bytes for gpu in gpus])
    name = f"{known[0].name} ({in_words(known[0].memory_bytes)})"
    if fitting is None:
        weights = in_words(demanded.weight_bytes(1))
        return f"{weights} of weights, and the KV cache: does not fit here, on {len(known)} x {name}"
    return f"fits here, on {fitting.gpus} x {name}, with room for {fitting.kv_tokens:,} tokens of KV cache"


def _weight_lines(
    shape: ModelShape, stored: Precision, running: Precision, max_seq_len: int | None, has_more: bool
) -> list[str]:
    """Return lines about the ``stored`` weights and the KV cache of the ``running`` engine.

    ``has_more``: the model has parts besides the text's, which are not counted.
    """
    of_token = kv_bytes_per_token(shape, running)
    guess = "" if shape.is_known or running.gguf_type is not None else ", counted as Llama-like"
    of_model = guess if stored.weight_bits is not None else ""
    of_model += ", without its parts for images and other media" if has_more else ""
    parameters = count_in_words(num_parameters(shape, stored))
    lines = [
        f"model         {parameters} parameters, {shape.num_layers} layers{of_model}",
        f"weights       {in_words(weight_bytes(shape, stored))} ({stored.words})",
    ]
    if max_seq_len is not None:
        of_sequence = in_words(kv_bytes_per_sequence(of_token, max_seq_len))
        per_sequence = (
            f"{of_sequence} per sequence of {max_seq_len} tokens ({running.kv_dtype or running.dtype})"
        )
        lines.append(f"KV cache      {in_words(of_token)} per token, {per_sequence}{guess}")
    return lines


def _market_lines(demanded: Demand, section: str = "vllm") -> Iterator[str]:
    """Yield a table of the tokens of KV cache by memory and number of GPUs. ``section``: see size_lines."""
    yield f"{f'GPUs ({section})':<14}" + "".join(f"{count:>12}" for count in GPU_COUNTS)
    is_short, fits = False, []
    for sold_gb, size_gib in _MARKET.items():
        cells = []
        for count in GPU_COUNTS:
            tokens = demanded.kv_tokens(demanded.arguments.gpu_share * size_gib * GIB, count)
            is_short |= 0 < tokens < demanded.limit
            no = "no" if demanded.can_split(count) else "-"
            cells.append(f"{tokens:,}{'*' if tokens < demanded.limit else ''}" if tokens else no)
            if tokens:
                fits.append((count, sold_gb, tokens))
        yield f"  {f'{sold_gb} GB':<12}" + "".join(f"{cell:>12}" for cell in cells)
    yield "              tokens of KV cache, all sequences together; no: does not fit"
    if not all(map(demanded.can_split, GPU_COUNTS)):
        heads = demanded.shape.num_heads
        yield f"              -: {heads} attention heads can't be split evenly over that number of GPUs"
    if is_short:
        yield f"              *: less than one sequence of {demanded.limit:,} tokens: lower max_seq_len"
    for count, sold_gb, tokens in _cheapest(fits, demanded):
        yield f"arguments     {_arguments(demanded, count, tokens, section)} on {count} x {sold_gb} GB"


def _cheapest(fits: Sequence[tuple[int, int, int]], demanded: Demand) -> list[tuple[int, int, int]]:
    """Return the smallest GPUs for the model, and the smallest for its longest sequence."""
    least = min(fits, key=lambda fit: fit[0] * fit[1], default=None)
    whole = [fit for fit in fits if fit[2] >= demanded.limit]
    longest = min(whole, key=lambda fit: fit[0] * fit[1], default=None)
    return [fit for fit in dict.fromkeys((least, longest)) if fit is not None]


def _arguments(demanded: Demand, num_gpus: int, kv_tokens: int, section: str) -> str:
    parts = [f"{section}: {{tensor_parallel_size: {num_gpus}}}"] if num_gpus > 1 else []
    if (length := demanded.max_seq_len(kv_tokens)) is not None:
        parts.append(f"max_seq_len: {length}")
    return ", ".join(parts) or "none needed"
