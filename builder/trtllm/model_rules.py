"""Check a build against the model's config.json: its heads, layers and positions."""

from __future__ import annotations

from dataclasses import replace

from builder.trtllm.summary import TrtllmBuild
from errors.build_config import ConflictingBuildKeys, SequenceTooLong


def fit_model(
    build: TrtllmBuild,
    max_positions: int | None = None,
    num_layers: int | None = None,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
) -> tuple[TrtllmBuild, list[str]]:
    """``build`` for the model with these facts (None: unknown), with notes. Raises E1204 and E1223."""
    _check_split(build, num_layers, num_heads, num_kv_heads)
    limit = max_positions
    if limit is None:
        return build, []
    notes = []
    for name in ("max_seq_len", "max_input_len"):
        value = build.build.value(name)
        if name not in build.build.args or value is None or value <= limit:
            continue
        if not build.fit_lengths:
            raise SequenceTooLong(
                key=f"build.args.{name}",
                value=value,
                limit=limit,
                remedy=f"give at most {limit}, or set build.fit_lengths to true to reduce it",
            )
        notes.append(f"build.args.{name}: {value} reduced to {limit}, the model's max_position_embeddings")
        call = replace(build.build, args={**build.build.args, name: limit})
        build = replace(build, build=call, calls=(*build.calls[:-1], call))
    return replace(build, max_seq_len=build.build.value("max_seq_len") or limit), notes


def _check_split(build: TrtllmBuild, layers: int | None, heads: int | None, kv_heads: int | None) -> None:
    """tp_size GPUs share the heads, pp_size GPUs the layers."""
    tp_size, pp_size = build.tp_size, build.pp_size
    problem = None
    if heads is not None and heads % tp_size:
        problem = f"splits {heads} attention heads over tp_size {tp_size}"
    elif kv_heads and kv_heads % tp_size and tp_size % kv_heads:
        problem = f"splits {kv_heads} key/value heads over tp_size {tp_size}"
    elif layers is not None and layers < pp_size:
        problem = f"splits {layers} layers over pp_size {pp_size}"
    if problem is not None:
        raise ConflictingBuildKeys(problem=problem, remedy="choose sizes that divide the model evenly")
