"""A model's parameters, counted from its config.json, are those that were published."""

import pytest

from builder.sizes.model_shape import UnknownShape, shape_of
from tests.builder.sizes.published import GPT2, LLAMA_2_7B, LLAMA_3_70B, MIXTRAL_8X7B, PUBLISHED


def test_the_count_is_the_published_one_within_a_percent() -> None:
    for config, published in PUBLISHED.values():
        shape = shape_of(config)
        assert shape.is_known
        assert shape.num_parameters == pytest.approx(published, rel=0.01), config


def test_a_multimodal_models_text_part_is_counted() -> None:
    nested = {"model_type": "llava", "text_config": LLAMA_2_7B}
    assert shape_of(nested).num_parameters == shape_of(LLAMA_2_7B).num_parameters


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_config_without_a_needed_number_is_told_by_its_name(key: str) -> None:
    for value in (None, 0, -1, "4096", True, [1], 10**400):
        with pytest.raises(UnknownShape, match=key):
            shape_of({**LLAMA_2_7B, key: value})


@pytest.mark.parametrize("key", ["kv_lora_rank", "q_lora_rank"])
def test_what_is_no_number_of_latent_attention_counts_as_left_out(key: str) -> None:
    known = PUBLISHED["deepseek-v2-lite"][0]
    for value in ("512", [512], {}):
        assert shape_of({**known, key: value}) == shape_of({**known, key: None})


def test_heads_and_lengths_are_read_by_every_familys_names() -> None:
    assert (shape_of(GPT2).num_kv_heads, shape_of(GPT2).other_parameters) == (12, 1024 * 768)
    assert (shape_of(LLAMA_3_70B).num_kv_heads, shape_of(LLAMA_3_70B).head_size) == (8, 128)
    assert shape_of(MIXTRAL_8X7B).num_experts == 8
    assert shape_of(PUBLISHED["chatglm3-6b"][0]).num_kv_heads == 2
    assert shape_of(PUBLISHED["starcoder"][0]).num_kv_heads == 1
    assert shape_of(PUBLISHED["deepseek-v2-lite"][0]).latent_size == 576
