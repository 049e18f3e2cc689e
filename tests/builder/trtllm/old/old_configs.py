"""Configs as they were written for TensorRT-LLM 0.5 to 0.12, one of each shape that is known."""

from __future__ import annotations

LLAMA_7B, LLAMA_13B = "meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-13b-chat-hf"

QUICK_START = """
model_id: sshleifer/tiny-gpt2
example_name: gpt
convert_to_ft:
  script: hf_gpt_convert.py
  output_dir: ./c-model/gpt2/1-gpu
  args:
    in-file: /src/models/sshleifer/tiny-gpt2
    out-dir: ./c-model/gpt2
    tensor-parallelism: 1
    storage-type: float16
build:
  script: build.py
  output_dir: ./engine_outputs/
  args:
    model_dir: ./c-model/gpt2/1-gpu
    output_dir: ./engine_outputs/
    use_gpt_attention_plugin:
    remove_input_padding:
"""


STARCODER = """
model_id: bigcode/starcoder
example_name: gpt
convert_to_ft:
  script: hf_gpt_convert.py
  output_dir: ./c-model/starcoder/1-gpu
  args:
    in-file: /src/models/bigcode/starcoder
    out-dir: /src/c-model/starcoder
    tensor-parallelism: 1
    storage-type: float16
    processes: 1
    smoothquant: 0.5
build:
  script: build.py
  output_dir: /src/engine_outputs/
  args:
    model_dir: /src/c-model/starcoder/1-gpu
    output_dir: /src/engine_outputs/
    dtype: float16
    use_gemm_plugin: float16
    use_gpt_attention_plugin:
    paged_kv_cache:
    remove_input_padding:
    int8_kv_cache:
    use_smooth_quant:
hf_token: your_token_here
"""

_TRTLLM_BUILD = """build:
  executable: trtllm-build
  output_dir: ./engine_outputs/
  args:
    checkpoint_dir: /src/c-model/{folder}
    output_dir: ./engine_outputs/
    remove_input_padding: enable
    context_fmha: enable
    gpt_attention_plugin: float16
    gemm_plugin: float16
    paged_kv_cache: enable
    workers: {workers}
"""


def _llama(model_id: str, folder: str, convert: str, build: str = "", workers: int = 1) -> str:
    step = (
        f"convert_to_ft:\n  executable: python\n  script: convert_checkpoint.py\n{convert}" if convert else ""
    )
    head = f"model_id: {model_id}\nexample_name: llama\nweight_format: safetensors\n"
    return head + step + _TRTLLM_BUILD.format(folder=folder, workers=workers) + build


def _converted(model_id: str, output_dir: str, args: str) -> str:
    return (
        f"  output_dir: ./c-model/{output_dir}\n"
        f"  args: {{model_dir: /src/models/{model_id}, output_dir: /src/c-model/{output_dir}, {args}}}\n"
    )


LONG = """    max_batch_size: 64
    max_input_len: 4096
    max_output_len: 4096
    use_paged_context_fmha: enable
    max_num_tokens: 54474
"""

_INT8 = "dtype: float16, use_weight_only: null, weight_only_precision: int8"
LLAMA_INT8_2GPU = _llama(
    LLAMA_13B,
    "int8/2-gpu",
    _converted(LLAMA_13B, "int8/2-gpu", f"tp_size: 2, {_INT8}"),
    LONG + "    use_custom_all_reduce: disable\n",
    workers=4,
)
LLAMA_CONVERTED_BEFORE = _llama(LLAMA_13B, LLAMA_13B, "")
"""Its conversion is commented out: it reads what an earlier build left behind."""

LLAMA_ONE_STAGE = f"""
model_id: {LLAMA_13B}
example_name: llama
weight_format: safetensors
build:
  script: build.py
  output_dir: ./engine_outputs_1/
  args:
    model_dir: /src/models/{LLAMA_13B}
    output_dir: ./engine_outputs/
    dtype: float16
    use_gpt_attention_plugin: float16
    use_inflight_batching: null
    paged_kv_cache: null
    use_gemm_plugin: float16
    remove_input_padding: null
    parallel_build: null
    enable_context_fmha: null
    max_batch_size: 1
    max_input_len: 500
    max_output_len: 500
    n_positions: 1000
merge: true
"""

LLAMA_SMOOTHQUANT_OF_FT = f"""
model_id: {LLAMA_7B}
example_name: llama
convert_to_ft:
  script: hf_llama_convert.py
  output_dir: ./smooth_llama/sq0.8
  args: {{in-file: /src/models/{LLAMA_7B}, out-dir: ./smooth_llama/sq0.8, tensor-parallelism: 2,
         storage-type: fp16, smoothquant: 0.8, calibrate-kv-cache: null}}
build:
  script: build.py
  output_dir: ./out
  args: {{ft_model_dir: ./smooth_llama/sq0.8/2-gpu, model_dir: /src/models/{LLAMA_7B}, output_dir: ./out,
         dtype: float16, world_size: 2, tp_size: 2, use_smooth_quant: true, per_token: true,
         per_channel: true, use_rmsnorm_plugin: float16, rotary_base: 10000.0, parallel_build: true}}
"""

LLAMA_AWQ_OF_FILE = f"""
model_id: {LLAMA_7B}
example_name: llama
quantize:
  script: quantize.py
  output_dir: ./awq
  args: {{model_dir: /src/models/{LLAMA_7B}, dtype: float16, qformat: int4_awq, export_path: ./awq/llama.pt,
         calib_size: 32}}
build:
  script: build.py
  output_dir: ./out
  args: {{model_dir: /src/models/{LLAMA_7B}, quant_ckpt_path: ./awq/llama.pt, output_dir: ./out,
         dtype: float16, use_weight_only: null, weight_only_precision: int4_awq, per_group: null}}
"""

LLAMA_AWQ = """
model_id: meta-llama/Meta-Llama-3.1-8B-Instruct
example_name: llama
quantize:
  script: ../quantization/quantize.py
  output_dir: ./awq
  args: {dtype: bfloat16, qformat: int4_awq, awq_block_size: 128, batch_size: 12, output_dir: ./awq}
build:
  executable: trtllm-build
  output_dir: ./out
  args: {checkpoint_dir: ./awq, gpt_attention_plugin: bfloat16, gemm_plugin: bfloat16, output_dir: ./out}
"""


ALL = {
    name: text
    for name, text in globals().items()
    if name.isupper() and isinstance(text, str) and "build:" in text and not name.startswith("_")
}
