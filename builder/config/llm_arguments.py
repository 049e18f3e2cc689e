"""The arguments of TensorRT-LLM's ``LLM`` in a build config, and those that a config can't set.

``llm_arguments.json`` has the arguments of NVIDIA's API reference of 1.3.0rc7, and later ones with the
version that added them (``since``). An engine does not start with an argument that its version lacks.
"""

from pathlib import Path

from builder.config.arguments import ArgumentTable, by_name

_GONE = by_name(
    {
        "write kv_cache_config: {dtype: ...}": "kv_cache_dtype",
        "write kv_cache_config: {free_gpu_memory_fraction: ...}": (
            "free_gpu_memory_fraction kv_cache_free_gpu_memory_fraction kv_cache_free_gpu_mem_fraction"
        ),
        "write lora_config: {...}": "max_loras max_cpu_loras max_lora_rank",
        "write cuda_graph_config: {...}": (
            "use_cuda_graph cuda_graph_batch_sizes cuda_graph_max_batch_size cuda_graph_padding_enabled"
        ),
        "write moe_config: {...}": "moe_backend moe_max_num_tokens moe_load_balancer",
        "write tensor_parallel_size": "tp_size",
        "write pipeline_parallel_size": "pp_size",
        "write moe_expert_parallel_size": "ep_size",
        "write disable_overlap_scheduler": "enable_overlap_scheduler",
        "write enable_autotuner": "autotuner_enabled",
        "write torch_compile_config: {...}": "torch_compile_enabled torch_compile_fullgraph",
        "write what it has in llm_args itself": "pytorch_backend_config extra_llm_api_options",
        "leave it out: there is one sampler": "enable_trtllm_sampler enable_mixed_sampler mixed_sampler",
        "leave it out: it belongs to the compiled engines": (
            "build_config quant_config calib_config fast_build enable_build_cache batching_type workspace "
            "extended_runtime_perf_knob_config decoding_config enable_tqdm embedding_parallel_mode "
            "normalize_log_probs auto_parallel fail_fast_on_attention_window_too_large enable_prompt_adapter "
            "max_prompt_adapter_token"
        ),
    }
)
TABLE = ArgumentTable(
    section="llm_args",
    file=Path(__file__).resolve().with_suffix(".json"),
    library="tensorrt_llm",
    words="TensorRT-LLM",
    list_in="docs/tensorrt_llm.md",
    same={"dtype": "dtype", "max_seq_len": "max_seq_len", "max_batch_size": "max_batch_size"},
    decided=by_name(
        {
            "it is given by model_id, model_path or model_tar_url": "model revision",
            "the engine has its tokenizer, and the library gets token ids only": (
                "tokenizer tokenizer_mode tokenizer_revision custom_tokenizer skip_tokenizer_init "
                "num_postprocess_workers postprocess_tokenizer_dir"
            ),
            "the build config has a key of this name": "trust_remote_code backend",
            "each request has its sampling parameters": "generation_config",
            "the engine slot sets it": "enable_iter_perf_stats enable_iter_req_stats",
            "it names code, which an engine does not have": (
                "batched_logits_processor checkpoint_loader post_processor_hook ray_worker_extension_cls"
            ),
            "set the variables of the runner": "env_overrides",
            "no usage is reported": "telemetry_config",
        }
    ),
    without_effect=by_name(
        {
            "every token is streamed": "stream_interval",
            "requests have text only": (
                "mm_encoder_only disable_mm_encoder multimodal_config encoder_cuda_graph_config "
                "encoder_max_batch_size encoder_max_num_tokens"
            ),
            "it generates text only": "encode_only",
            "the runner separates reasoning": "reasoning_parser",
            "no request asks for a beam search": "max_beam_width",
            "no response has it": "gather_generation_logits return_perf_metrics perf_metrics_max_requests",
            "an engine runs requests as a whole": "cache_transceiver_config",
            "nothing lets the engine sleep": "enable_sleep",
            "set OTEL_EXPORTER_OTLP_ENDPOINT of the runner": "otlp_traces_endpoint",
            "its own server has it": "num_serve_frontends prometheus_metrics_config",
        }
    ),
    gone=_GONE,
)
