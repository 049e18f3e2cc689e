"""Configs as they were written for TensorRT-LLM 0.5 to 0.12, one of each shape that is known."""

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
  args: {in-file: /src/models/bigcode/starcoder, out-dir: /src/c-model/starcoder, tensor-parallelism: 1,
         storage-type: float16, processes: 1, smoothquant: 0.5}
build:
  script: build.py
  output_dir: /src/engine_outputs/
  args: {model_dir: /src/c-model/starcoder/1-gpu, output_dir: /src/engine_outputs/, dtype: float16,
         use_gemm_plugin: float16, use_gpt_attention_plugin: null, paged_kv_cache: null,
         remove_input_padding: null, int8_kv_cache: null, use_smooth_quant: null}
hf_token: your_token_here
"""

LLAMA_CONVERTED_BEFORE = f"""
model_id: {LLAMA_13B}
example_name: llama
weight_format: safetensors
build:
  executable: trtllm-build
  output_dir: ./engine_outputs/
  args: {{checkpoint_dir: /src/c-model/int8, output_dir: ./engine_outputs/, remove_input_padding: enable,
         context_fmha: enable, gpt_attention_plugin: float16, gemm_plugin: float16, paged_kv_cache: enable,
         max_batch_size: 64, max_input_len: 4096, max_output_len: 4096, use_paged_context_fmha: enable,
         max_num_tokens: 54474, use_custom_all_reduce: disable, workers: 4}}
"""
"""Its conversion is commented out: it reads what an earlier build left behind."""

LLAMA_INT8_2GPU = f"""{LLAMA_CONVERTED_BEFORE}
convert_to_ft:
  executable: python
  script: convert_checkpoint.py
  output_dir: ./c-model/int8
  args: {{model_dir: /src/models/{LLAMA_13B}, output_dir: /src/c-model/int8, tp_size: 2, dtype: float16,
         use_weight_only: null, weight_only_precision: int8}}
"""

LLAMA_ONE_STAGE = f"""
model_id: {LLAMA_13B}
example_name: llama
weight_format: safetensors
build:
  script: build.py
  output_dir: ./engine_outputs_1/
  args: {{model_dir: /src/models/{LLAMA_13B}, output_dir: ./engine_outputs/, dtype: float16,
         use_gpt_attention_plugin: float16, use_inflight_batching: null, paged_kv_cache: null,
         use_gemm_plugin: float16, remove_input_padding: null, parallel_build: null,
         enable_context_fmha: null, max_batch_size: 1, max_input_len: 500, max_output_len: 500,
         n_positions: 1000}}
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
    if name.isupper() and isinstance(text, str) and "build:" in text
}
