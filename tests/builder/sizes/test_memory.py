"""Bytes of weights and KV cache are those that published models are known to take."""

from typing import Any

import pytest

from builder.sizes.fit import MemoryArguments
from builder.sizes.memory import (
    GIB,
    GpuModel,
    Limits,
    Parallelism,
    Precision,
    gpus_of,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    rank_weight_bytes,
    serving_memory,
    weight_bytes,
)
from builder.sizes.model_shape import shape_of
from builder.sizes.precision import measured, num_parameters, running_precision, stored_precision
from engine.words import count_in_words, in_words
from tests.builder.sizes.published import LLAMA_2_7B, LLAMA_2_70B, LLAMA_3_8B, LLAMA_3_70B, PUBLISHED

INT4 = Precision(weight_bits=4, group_size=128)


@pytest.mark.parametrize(
    ("config", "precision", "expected_bytes"),
    [
        (LLAMA_2_7B, Precision(), 13_476_839_424),
        (LLAMA_3_8B, Precision("bfloat16"), 16_060_522_496),
        (LLAMA_2_7B, Precision("float32"), 26_953_662_464),
        (LLAMA_2_7B, INT4, 3_890_000_000),  # TheBloke/Llama-2-7B-AWQ: 3.89 GB
        (LLAMA_3_8B, INT4, 5_730_000_000),  # Meta-Llama-3.1-8B-Instruct-AWQ-INT4: 5.73 GB
        (LLAMA_3_70B, Precision(weight_bits=8), 72_700_000_000),  # Meta-Llama-3.1-70B-Instruct-FP8
    ],
)
def test_a_checkpoint_is_as_large_as_the_published_one(
    config: dict[str, Any], precision: Precision, expected_bytes: int
) -> None:
    assert weight_bytes(shape_of(config), precision) == pytest.approx(expected_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("config", "precision", "split", "expected_bytes"),
    [
        (LLAMA_2_7B, Precision(), Parallelism(), 512 << 10),
        (LLAMA_3_8B, Precision(), Parallelism(), 128 << 10),
        (LLAMA_3_8B, Precision(kv_dtype="fp8"), Parallelism(), 64 << 10),
        (LLAMA_2_70B, Precision(), Parallelism(), 320 << 10),
        (LLAMA_2_70B, Precision(), Parallelism(tp_size=4), 80 << 10),
        (LLAMA_2_70B, Precision(), Parallelism(pp_size=4), 80 << 10),
        (LLAMA_2_70B, Precision(), Parallelism(tp_size=16), 40 << 10),  # no less than a head each
        (PUBLISHED["deepseek-v2-lite"][0], Precision(), Parallelism(), 27 * 576 * 2),
        (PUBLISHED["starcoder"][0], Precision(), Parallelism(), 2 * 40 * 128 * 2),
    ],
)
def test_a_token_of_kv_cache_takes_what_heads_and_layers_make(
    config: dict[str, Any], precision: Precision, split: Parallelism, expected_bytes: int
) -> None:
    assert kv_bytes_per_token(shape_of(config), precision, split) == expected_bytes


def test_a_sequence_takes_whole_blocks() -> None:
    assert [kv_bytes_per_sequence(10, tokens) for tokens in (1, 64, 65)] == [640, 640, 1280]


@pytest.mark.parametrize("split", [Parallelism(tp_size=8), Parallelism(pp_size=4), Parallelism(2, 2, 2)])
def test_a_rank_holds_its_part_and_all_ranks_together_at_least_the_whole(split: Parallelism) -> None:
    shape = shape_of(LLAMA_2_70B)
    whole = weight_bytes(shape, Precision())
    parts = split.tp_size * split.pp_size
    rank = rank_weight_bytes(shape, Precision(), split)
    assert whole / parts <= rank < whole / parts * 1.1


def test_llama_2_7b_serves_from_a_24_gib_gpu_and_70b_from_no_single_one() -> None:
    limits = Limits(max_batch_size=8, max_seq_len=4096, max_num_tokens=4096)
    a10, h200 = gpus_of(86)[0], gpus_of(90)[-1]
    small = serving_memory(shape_of(LLAMA_2_7B), Precision(), Parallelism(), limits)
    assert small.is_possible_on(a10)
    assert 3 <= small.sequences(a10) <= 5
    large = serving_memory(shape_of(LLAMA_3_70B), Precision(), Parallelism(), limits)
    assert not any(large.is_possible_on(gpu) for gpu in gpus_of(86))
    assert large.is_possible_on(h200)
    assert large.sequences(GpuModel("tight", large.weight_bytes + 1)) == 0
    exact = GpuModel("least", small.least_gpu_bytes + GIB // 100)
    assert small.sequences(exact) == 1


def test_sizes_and_counts_read_well() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 13_476_839_424: "12.6 GiB", 1 << 41: "2.0 TiB"}
    assert {each: in_words(each) for each in sizes} == sizes
    counts = {6_738_415_616: "6.74 billion", 1_730_000: "1.73 million", 5456: "5.46 thousand", 12: "12"}
    assert {each: count_in_words(each) for each in counts} == counts


GROUP = {"num_bits": 4, "group_size": 128, "type": "int"}


@pytest.mark.parametrize(
    ("described", "bits", "group_size"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4, 128),
        ({"quant_method": "gptq", "bits": 3, "group_size": -1}, 3, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8, None),
        ({"quant_method": "fbgemm_fp8"}, 8, None),
        ({"quant_method": "mxfp4"}, 4, 32),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, 4, 32),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8, None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4, 32),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, 4, 32),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": GROUP}}}, 4, 128),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": GROUP, "input_activations": {"num_bits": 16}},
                    "b": {"weights": {"num_bits": 8}},
                    "c": {"weights": None},
                    "d": None,
                },
            },
            8,
            128,
        ),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, None, None),
        ({"quant_method": 7, "bits": "4"}, None, None),
    ],
)
def test_a_quantizations_bits_are_read_from_every_methods_description(
    described: dict[str, object], bits: int | None, group_size: int | None
) -> None:
    found = stored_precision({**LLAMA_3_70B, "quantization_config": described})
    assert (found.weight_bits, found.group_size) == (bits, group_size)


@pytest.mark.parametrize(
    ("dtype", "share", "on_gpu", "on_cpu"),
    [
        ("float16", 1.06, 1.06, 2.12),
        ("float16", 2.0, 1.0, 2.0),  # Files of 32 bits.
        ("float16", 2.5, 2.5, 5.0),  # A part that config.json does not tell.
        ("float32", 2.0, 1.0, 2.0),
        ("float32", 1.06, 1.06, 2.12),  # Files of 16 bits.
        ("float32", 1.6, 1.6, 3.2),  # Of 16 bits, with such a part.
        (None, 1.06, 1.06, 2.12),
        (None, 1.6, 1.6, 3.2),
        (None, 2.0, 1.0, 2.0),
    ],
)
def test_weights_are_held_as_large_as_their_files_tell(
    dtype: str | None, share: float, on_gpu: float, on_cpu: float
) -> None:
    values = {**LLAMA_3_8B, "torch_dtype": dtype}
    shape = shape_of(values)
    half_bytes = weight_bytes(shape, Precision(dtype="float16"))
    stored = measured(shape, stored_precision(values), int(share * half_bytes))
    held = [running_precision(stored, None, on_cpu=each, half=True) for each in (False, True)]
    assert [weight_bytes(shape, each) / half_bytes for each in held] == pytest.approx([on_gpu, on_cpu])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("file_dtype", ["float16", "float32", "bfloat16"])
def test_the_data_type_of_the_files_tells_what_config_json_leaves_out(dtype: str, file_dtype: str) -> None:
    values = {**LLAMA_3_8B, "torch_dtype": dtype}
    shape = shape_of(values)
    half_bytes = weight_bytes(shape, Precision(dtype="float16"))
    file_bytes = 2 * half_bytes * (2 if file_dtype == "float32" else 1)
    stored = measured(shape, stored_precision(values), file_bytes, file_dtype)
    held = running_precision(stored, None, on_cpu=False, half=True)
    assert weight_bytes(shape, held) == 2 * half_bytes
    assert num_parameters(shape, stored) == 2 * shape.num_parameters


@pytest.mark.parametrize("dtype", ["float16", "float32", None])
def test_a_quantized_model_is_as_large_as_its_files(dtype: str | None) -> None:
    described = {"quant_method": "awq", "bits": 4, "group_size": 128}
    values = {**LLAMA_3_8B, "torch_dtype": dtype, "quantization_config": described}
    shape, file_bytes = shape_of(values), 5_730_000_000
    stored = measured(shape, stored_precision(values), file_bytes)
    held = running_precision(stored, None, on_cpu=False, half=True)
    assert weight_bytes(shape, held) == pytest.approx(file_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        (None, None),
        ("auto", None),
        ("bfloat16", None),
        ("fp8_e5m2", 8),
        ("int8_per_token_head", 8),
        ("nvfp4_4over6", 4.5),
        ("turboquant_k8v4", 6.5),
        ("turboquant_3bit_nc", 3.5),
        ("octave_k3v4", 4),
    ],
)
def test_a_kv_cache_has_the_bits_that_its_data_type_names(name: str | None, bits: float | None) -> None:
    cache = MemoryArguments(kv_dtype=name).applied(Precision())
    whole = kv_bytes_per_token(shape_of(LLAMA_3_8B), Precision())
    assert kv_bytes_per_token(shape_of(LLAMA_3_8B), cache) == whole * (bits or 16) / 16


def test_files_that_are_quantized_already_are_not_counted_as_quantized_once_more() -> None:
    shape, to_four_bits = shape_of(LLAMA_3_8B), MemoryArguments(weight_bits=4)
    plain = stored_precision(LLAMA_3_8B)
    small = measured(shape, plain, 6 * GIB)
    assert weight_bytes(shape, to_four_bits.applied(small)) == pytest.approx(6 * GIB, rel=0.01)
    assert weight_bytes(shape, to_four_bits.applied(plain)) < 6 * GIB
