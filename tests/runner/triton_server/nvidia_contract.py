"""The tensors of NVIDIA's models, tag v0.16.0 of tensorrtllm_backend: name, type and shape of each."""

_TYPES = {
    "i32": "TYPE_INT32",
    "i64": "TYPE_INT64",
    "u8": "TYPE_UINT8",
    "u64": "TYPE_UINT64",
    "f16": "TYPE_FP16",
    "f32": "TYPE_FP32",
    "bool": "TYPE_BOOL",
    "text": "TYPE_STRING",
}

_GENERATION = """
text_input text 1, decoder_text_input text 1, num_return_sequences i32 1, bad_words text -1,
stop_words text -1, exclude_input_in_output bool 1, end_id i32 1, pad_id i32 1, top_k i32 1, top_p f32 1,
temperature f32 1, length_penalty f32 1, repetition_penalty f32 1, min_length i32 1, presence_penalty f32 1,
frequency_penalty f32 1, random_seed u64 1, return_log_probs bool 1, return_context_logits bool 1,
return_generation_logits bool 1, return_kv_cache_reuse_stats bool 1, beam_width i32 1, stream bool 1,
prompt_embedding_table f16 -1 -1, prompt_table_extra_id u64 1, prompt_vocab_size i32 1,
embedding_bias_words text -1, embedding_bias_weights f32 -1, lora_task_id u64 1, lora_weights f16 -1 -1,
lora_config i32 -1 3
"""
_BLS = """
image_input f16 -1 3 -1 -1, image_bytes_input u8 -1 -1 -1 -1, image_url_input text 1,
video_bytes_input u8 -1 -1 -1 -1, num_draft_tokens i32 1, use_draft_logits bool 1
"""
_RESULT = """
text_output text -1, cum_log_probs f32 -1, output_log_probs f32 -1 -1, context_logits f32 -1 -1,
generation_logits f32 -1 -1 -1, batch_index i32 1, sequence_index i32 1, kv_cache_alloc_new_blocks i32 1,
kv_cache_reused_blocks i32 1, kv_cache_alloc_total_blocks i32 1
"""
_PREPROCESSING_INPUTS = """
QUERY text 1, DECODER_QUERY text 1, IMAGE_BYTES u8 -1 -1 -1 -1, IMAGE_URL text 1,
VIDEO_BYTES u8 -1 -1 -1 -1, BAD_WORDS_DICT text -1, STOP_WORDS_DICT text -1, EMBEDDING_BIAS_WORDS text -1,
EMBEDDING_BIAS_WEIGHTS f32 -1, END_ID i32 1, PAD_ID i32 1, PROMPT_TABLE_EXTRA_ID u64 1
"""
_PREPROCESSING_OUTPUTS = """
INPUT_ID i32 -1, REQUEST_INPUT_LEN i32 1, DECODER_INPUT_ID i32 -1, REQUEST_DECODER_INPUT_LEN i32 1,
BAD_WORDS_IDS i32 2 -1, STOP_WORDS_IDS i32 2 -1, EMBEDDING_BIAS f32 -1, REQUEST_OUTPUT_LEN i32 -1,
OUT_END_ID i32 1, OUT_PAD_ID i32 1, OUT_PROMPT_TABLE_EXTRA_IDS u64 -1, PIXEL_VALUES f16 -1 -1 -1 -1,
ASPECT_RATIO_IDS i64 -1, ASPECT_RATIO_MASK i64 -1 -1, CROSS_ATTENTION_MASK i64 -1 -1 -1, IMAGE_SIZES i64 2,
IS_VIDEO_INPUT bool 1
"""

Tensors = dict[str, tuple[str, list[int]]]


def _tensors(text: str) -> Tensors:
    words = (each.split() for each in text.split(","))
    return {name: (_TYPES[kind], [int(size) for size in dims]) for name, kind, *dims in words}


INPUTS: dict[str, Tensors] = {
    "ensemble": _tensors(_GENERATION),
    "tensorrt_llm_bls": _tensors(f"{_GENERATION}, {_BLS}"),
    "preprocessing": _tensors(_PREPROCESSING_INPUTS),
    "postprocessing": _tensors("TOKENS_BATCH i32 -1 -1, SEQUENCE_LENGTH i32 -1"),
}
"""Without max_tokens and REQUEST_OUTPUT_LEN, whose type is a setting here."""
OUTPUTS: dict[str, Tensors] = {
    "ensemble": _tensors(_RESULT),
    "tensorrt_llm_bls": _tensors(_RESULT),
    "preprocessing": _tensors(_PREPROCESSING_OUTPUTS),
    "postprocessing": _tensors("OUTPUT text -1"),
}
