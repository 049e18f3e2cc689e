"""Fields of other servers that this one does not know, with values that ask for its only behavior.

Routers and clients send them with each request. With such a value a field counts as not sent; with another it
is unknown (E1601).
"""

from collections.abc import Mapping

NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    # SGLang and its router.
    "no_stop_trim": (False,),
    "return_cached_tokens_details": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    # vLLM.
    "bad_words": ([],),
    "early_stopping": (False,),
    "include_stop_str_in_output": (False,),
    "is_3d_lora_weight": (False,),
    "length_penalty": (1,),
    "mm_processor_kwargs": ({},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    # OpenAI, where this server lacks what they ask for; `echo`, `logprobs` and `n` of another endpoint.
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "n": (1,),
    "suffix": ("",),
    # Anthropic.
    "mcp_servers": ([],),
    # llama.cpp and web interfaces made for it.
    "cache_prompt": (True,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "mirostat": (0,),
    "n_probs": (0,),
    "reasoning_format": ("auto", "deepseek", "parsed"),
    "repeat_penalty": (1,),
    "return_progress": (False,),
    "tfs_z": (1,),
    "timings_per_token": (False,),
    "top_a": (0,),
    "typical_p": (1,),
    "xtc_probability": (0,),
    # OpenRouter, LiteLLM, NVIDIA Dynamo, Mistral.
    "extra_body": ({},),
    "models": ([],),
    "nvext": ({},),
    "plugins": ([],),
    "provider": ({},),
    "reasoning": ({},),
    "safe_prompt": (False,),
    "transforms": ([],),
    "usage": ({"include": False},),
}
_SPECIAL_TOKENS = "add_special_tokens"
NEUTRAL_IN_CHATS = {**NEUTRAL_VALUES, _SPECIAL_TOKENS: (False,)}
NEUTRAL_IN_COMPLETIONS = {**NEUTRAL_VALUES, _SPECIAL_TOKENS: (True,)}
