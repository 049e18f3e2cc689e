"""Shape of a model: the number of layers, heads and parameters that its ``config.json`` describes.

Norms and biases are not counted: they are less than 0.2 % of published models. Tests compare the other
parameters with those of transformers' own model: those of the families that TensorRT-LLM compiles are exact,
those of the others within 1 %. Of a model with images, only the text's part is counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.weights.checkpoint import LENGTH_KEYS, MOST

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class Family:
    """The matrices of a model family, which ``config.json`` does not describe."""

    is_gated: bool = True
    """True if the MLP has a third matrix, the gate."""
    has_positions: bool = False
    """True if position embeddings are learned."""
    position_offset: int = 0
    is_tied: bool = False
    """Default of tie_word_embeddings."""
    multi_query: str | None = None
    """Key of the config for one KV head, or ``multi_query_group_num`` of them (``key=default``)."""
    multi_query_unless_new: bool = False
    halves_intermediate: bool = False


_LLAMA_LIKE = Family()
_PLAIN = Family(is_gated=False, is_tied=True)

_FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "phi3", "internlm2", "internlm",
            "baichuan", "deepseek", "deepseek_v2", "deepseek_v3", "dbrx", "deepseek_v32", "glm_moe_dsa",
            "cwm", "diffllama", "exaone", "exaone4", "flex_olmo", "glm", "glm4", "glm4_moe", "gpt_oss",
            "granite", "granitemoe", "helium", "hyperclovax", "internlm3", "iquestcoder", "kolibri1",
            "mellum", "minimax_m2", "ministral3", "olmo", "olmo2", "olmo3", "olmoe", "phimoe", "qwen3_moe",
            "sarvam_mla", "sarvam_moe", "seed_oss", "solar_open", "stablelm", "qwen2_vl", "qwen2_vl_text",
            "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "glm4v_text",
            "glm4v_moe_text",
        ),
        _LLAMA_LIKE,
    ),
    **dict.fromkeys(
        (
            "gemma", "gemma2", "gemma3_text", "vaultgemma", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe",
            "granite_swa", "minicpm3", "smollm3", "youtu", "gte", "modernbert", "nomic_bert",
        ),
        Family(is_tied=True),
    ),
    **dict.fromkeys(
        (
            "phi", "gptj", "gpt_neox", "nemotron", "apertus", "arcee", "codegen", "jais2", "nanochat",
            "persimmon",
        ),
        Family(is_gated=False),
    ),
    **dict.fromkeys(("starcoder2", "bloom", "mpt", "gpt_neox_japanese"), _PLAIN),
    **dict.fromkeys(
        ("gpt2", "gpt_neo", "bert", "camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"),
        Family(is_gated=False, is_tied=True, has_positions=True),
    ),
    "qwen": Family(halves_intermediate=True),
    "chatglm": Family(multi_query="multi_query_attention=false"),
    "gpt_bigcode": Family(is_gated=False, is_tied=True, has_positions=True, multi_query="multi_query=true"),
    "opt": Family(is_gated=False, is_tied=True, has_positions=True, position_offset=2),
    "falcon": Family(is_gated=False, is_tied=True, multi_query_unless_new=True),
}  # fmt: skip


class UnknownShape(Exception):
    """Error of a config that lacks a number that the sizes depend on; the text is its key."""


@dataclass(frozen=True)
class ModelShape:
    """Shape of a model. Parameter counts are numbers of weights, of all layers."""

    model_type: str
    is_known: bool
    """False for another family, which is counted as Llama-like: its number of parameters is only a guess."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    num_experts: int
    latent_size: int | None
    """Values cached per token and layer with multi-head latent attention."""
    linear_parameters: int
    """Number of weights in attention and MLP matrices, experts included: those that quantization shrinks."""
    other_parameters: int
    """Number of weights in routers and position embeddings."""
    embedding_parameters: int
    head_parameters: int
    """Number of weights in the output layer; 0 where it shares the embedding."""

    @property
    def num_parameters(self) -> int:
        inner = self.linear_parameters + self.other_parameters
        return inner + self.embedding_parameters + self.head_parameters


def shape_of(values: Mapping[str, Any]) -> ModelShape:
    """Return the shape that the ``values`` of a config.json describe. Raises UnknownShape."""
    inner = values.get("text_config")
    described = {**values, **inner} if isinstance(inner, dict) else dict(values)
    if "tie_word_embeddings" in values:
        described["tie_word_embeddings"] = values["tie_word_embeddings"]  # The whole model's counts.
    model_type = str(described.get("model_type", ""))
    family = _FAMILIES.get(model_type)
    return _Counter(described, family or _LLAMA_LIKE, is_known=family is not None).shape(model_type)


class _Counter:
    def __init__(self, values: Mapping[str, Any], family: Family, *, is_known: bool) -> None:
        self._values = values
        self._family = family
        self._is_known = is_known
        self._hidden = self._required("hidden_size", "n_embd", "d_model", "n_embed")
        self._layers = self._required("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        self._heads = self._required("num_attention_heads", "n_head", "n_heads", "num_heads")
        self._head_size = self._number("head_dim", "kv_channels", "d_kv") or self._hidden // self._heads or 1
        self._kv_heads = self._count_kv_heads()
        self._intermediate = self._count_intermediate()
        self._experts = self._number(*_EXPERT_KEYS, section="ffn_config") or 0

    def shape(self, model_type: str) -> ModelShape:
        vocabulary = self._required("padded_vocab_size", "vocab_size")
        dense_layers = self._count_dense_layers()
        moe_layers = self._layers - dense_layers
        linear = self._layers * self._attention() + dense_layers * self._mlp(self._intermediate)
        linear += moe_layers * self._mixture()
        other = moe_layers * self._hidden * self._experts
        embedded = self._number("word_embed_proj_dim") or self._hidden
        if self._family.has_positions:
            other += ((self._number(*LENGTH_KEYS) or 0) + self._family.position_offset) * self._hidden
        if embedded != self._hidden:
            linear += 2 * embedded * self._hidden
        head = 0 if self._values.get("tie_word_embeddings", self._family.is_tied) else vocabulary * embedded
        return ModelShape(
            model_type=model_type,
            is_known=self._is_known,
            hidden_size=self._hidden,
            num_layers=self._layers,
            num_heads=self._heads,
            num_kv_heads=self._kv_heads,
            head_size=self._head_size,
            intermediate_size=self._intermediate,
            vocab_size=vocabulary,
            num_experts=self._experts,
            latent_size=self._latent_size(),
            linear_parameters=linear,
            other_parameters=other,
            embedding_parameters=vocabulary * embedded,
            head_parameters=head,
        )

    def _attention(self) -> int:
        if (latent := self._number("kv_lora_rank")) is not None:
            return self._latent_attention(latent)
        return self._hidden * 2 * (self._heads + self._kv_heads) * self._head_size

    def _latent_attention(self, latent: int) -> int:
        """Count DeepSeek's latent attention: low-rank keys, values and, in some models, queries."""
        content = self._required("qk_nope_head_dim")
        rotary = self._required("qk_rope_head_dim")
        value = self._required("v_head_dim")
        queries = self._heads * (content + rotary)
        rank = self._number("q_lora_rank")
        linear = self._hidden * queries if rank is None else rank * (self._hidden + queries)
        linear += self._hidden * (latent + rotary) + latent * self._heads * (content + value)
        return linear + self._heads * value * self._hidden

    def _latent_size(self) -> int | None:
        latent = self._number("kv_lora_rank")
        return None if latent is None else latent + self._required("qk_rope_head_dim")

    def _mlp(self, width: int) -> int:
        return (3 if self._family.is_gated else 2) * self._hidden * width

    def _mixture(self) -> int:
        width = self._number("moe_intermediate_size") or self._intermediate
        shared_width = self._number("shared_expert_intermediate_size")
        if shared_width is None:
            shared_width = width * (self._number("n_shared_experts") or 0)
        return self._experts * self._mlp(width) + self._mlp(shared_width)

    def _count_dense_layers(self) -> int:
        if not self._experts:
            return self._layers
        return min(self._number("first_k_dense_replace") or 0, self._layers)

    def _count_kv_heads(self) -> int:
        values = self._values
        if (grouped := self._number("kv_n_heads", section="attn_config")) is not None:
            return grouped
        if self._family.multi_query_unless_new and not values.get("new_decoder_architecture", False):
            return 1 if values.get("multi_query", True) else self._heads
        if self._family.multi_query is not None:
            key, _, default = self._family.multi_query.partition("=")
            if values.get(key, default == "true"):
                return self._number("multi_query_group_num") or 1
        return self._number("num_key_value_heads", "num_kv_heads") or self._heads

    def _count_intermediate(self) -> int:
        width = self._number("ffn_hidden_size", section="ffn_config")
        width = width or self._number("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
        width = width or self._hidden * (self._number("expansion_ratio") or 4)
        return width // 2 if self._family.halves_intermediate else width

    def _required(self, *keys: str) -> int:
        found = self._number(*keys)
        if found is None:
            raise UnknownShape(keys[0])
        return found

    def _number(self, *keys: str, section: str = "") -> int | None:
        """Return the first positive whole number under one of ``keys``, in ``section`` before the top."""
        inner = self._values.get(section)
        places = [inner, self._values] if isinstance(inner, dict) else [self._values]
        found = (place.get(key) for place in places for key in keys)
        return next((each for each in found if _is_count(each)), None)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST
