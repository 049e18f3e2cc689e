"""Every family's count is what the matrices of transformers' own model have (built without memory).

Vectors (norms, biases, the gate of a shared expert) are not counted.
"""

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from builder.sizes.model_shape import _FAMILIES, shape_of  # noqa: E402

pytestmark = pytest.mark.engine_env

NEW = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "vocab_size": 130, "max_position_embeddings": 40, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**NEW, "num_key_value_heads": 2}
OLD = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 130, "n_positions": 40}
FALCON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 130}
OPT = {**NEW, "ffn_dim": 96, "word_embed_proj_dim": 64}
LATENT = {
    **NEW, "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "n_group": 1, "topk_group": 1,
}  # fmt: skip

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", GROUPED),
    ("llama", {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
               "head_dim": 32}),
    ("mistral", {**GROUPED, "head_dim": 32}),
    ("mixtral", {**GROUPED, "num_local_experts": 4}),
    ("qwen2", GROUPED),
    ("qwen2", {**GROUPED, "tie_word_embeddings": True}),
    ("qwen2_moe", {**GROUPED, "num_experts": 4, "moe_intermediate_size": 48,
                   "shared_expert_intermediate_size": 80}),
    ("qwen3", {**GROUPED, "head_dim": 32}),
    ("gemma", {**NEW, "head_dim": 32, "num_key_value_heads": 1}),
    ("gemma2", {**GROUPED, "head_dim": 32}),
    ("phi", NEW),
    ("phi3", GROUPED),
    ("gpt2", OLD),
    ("gpt_bigcode", OLD),
    ("gpt_bigcode", {**OLD, "multi_query": False, "n_inner": 100}),
    ("starcoder2", GROUPED),
    ("starcoder2", {**GROUPED, "use_bias": False}),
    ("gptj", {**OLD, "rotary_dim": 8}),
    ("gpt_neox", NEW),
    ("gpt_neox", {**NEW, "attention_bias": False}),
    ("opt", OPT),
    ("opt", {**OPT, "word_embed_proj_dim": 32}),
    ("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 130}),
    ("falcon", FALCON),
    ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}),
    ("mpt", {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 130, "max_seq_len": 40}),
    ("nemotron", {**GROUPED, "head_dim": 16}),
    ("deepseek_v2", LATENT),
    ("deepseek_v3", LATENT),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "config"), CASES)
def test_the_count_is_that_of_the_model_itself(model_type: str, config: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(model_type, **config)
        )
    shape = shape_of({"model_type": model_type, **config})
    assert shape.is_known
    matrices = [each for each in model.parameters() if each.dim() > 1 and 1 not in each.shape]
    assert shape.num_parameters == sum(each.numel() for each in matrices)


UNLIKE = {"baichuan", "chatglm", "dbrx", "deepseek", "internlm", "internlm2", "ministral", "nemotron", "qwen"}
"""Families that transformers has no class for, or whose class has no model by default."""
OTHERS = sorted(_FAMILIES.keys() - {model_type for model_type, _ in CASES} - UNLIKE)
TEXT_PARTS = ("_text", "_vl")


@pytest.mark.parametrize("model_type", OTHERS)
def test_the_count_of_other_families_is_that_of_the_default_model_within_a_percent(model_type: str) -> None:
    has_images = model_type.endswith(TEXT_PARTS) and model_type != "gemma3_text"
    config = transformers.AutoConfig.for_model(model_type.removesuffix("_text") if has_images else model_type)
    whole = transformers.AutoModelForImageTextToText if has_images else transformers.AutoModelForCausalLM
    embeds = {"bert", "camembert", "gte", "modernbert", "mpnet", "nomic_bert", "roberta"}
    if model_type in embeds or model_type.startswith("xlm-"):
        whole = transformers.AutoModel
    with torch.device("meta"):
        model = whole.from_config(config)
    counted = [
        each.numel()
        for name, each in model.named_parameters()
        if each.dim() > 1 and 1 not in each.shape and "visual" not in name
    ]
    shape = shape_of({**json.loads(config.to_json_string()), "model_type": model_type})
    assert shape.num_parameters == pytest.approx(sum(counted), rel=0.01)
