"""The arguments of vLLM's engine in a build config, and those that a config can't set.

``tools/list_vllm_arguments.py`` writes ``vllm_arguments.json`` from the pinned vLLM.
"""

from pathlib import Path

from builder.config.arguments import ArgumentTable, by_name

_REPLICAS = "data_parallel_size alone counts the replicas of one machine; run one runner on each machine"
_DECIDED = by_name(
    {
        "it is given by model_id, model_path or model_tar_url": (
            "model model_weights revision code_revision hf_config_path download_dir"
        ),
        "the engine has its tokenizer, and vLLM gets token ids only": (
            "tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init"
        ),
        "each request has its sampling parameters": "generation_config override_generation_config",
        "the model's files tell whether it generates or embeds": "runner convert pooler_config",
        "the engine slot sets it": (
            "served_model_name tokens_only enable_prompt_embeds io_processor_plugin disable_log_stats "
            "scheduler_cls enable_log_requests aggregate_engine_logging per_request_spec_decode_metrics"
        ),
        "use the key hf_token of the build config, which is kept secret": "hf_token",
        "the build config has a key of this name": "trust_remote_code",
        "it names code, which an engine does not have": "model_class_overrides",
        _REPLICAS: (
            "data_parallel_address data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb "
            "data_parallel_multi_port_external_lb data_parallel_rank data_parallel_rpc_port "
            "data_parallel_size_local data_parallel_start_rank"
        ),
        "set NODES, NODE_RANK and HEAD_ADDRESS of the runner": "nnodes node_rank master_addr master_port",
        "set VLLM_LOGGING_LEVEL of the runner": "log_config_file log_level logging_config",
    }
)
_WITHOUT_EFFECT = by_name(
    {
        "nothing sends it other weights": "weight_transfer_config",
        "nothing calls the extension": "worker_extension_cls",
        "nothing starts the profiler": "profiler_config",
        "nothing changes the number of GPUs of an engine": "elastic_ep_max_dp_size enable_elastic_ep",
        _REPLICAS: "dp_sync_interval enable_fault_tolerance fault_tolerance_config",
        "no response has the experts": "aux_output_config enable_return_routed_experts",
        "no response has it": "return_sampling_mask",
        "no request can give the tokens to replay": "enable_trace_replay",
        "no request asks for a watermark": "watermark_config",
        "nothing classifies": "max_lora_cls_labels",
        "vLLM's own API server has this limit; set MAX_QUEUE_MS of the runner": (
            "max_num_queued_reqs max_num_queued_tokens"
        ),
        "every token is streamed": "stream_interval",
        "the runner makes the prompts": "renderer_num_workers",
        "set OTEL_EXPORTER_OTLP_ENDPOINT of the runner": "otlp_traces_endpoint collect_detailed_traces",
        "vLLM's own metrics are not served; see docs/observability.md": (
            "cudagraph_metrics custom_histogram_buckets enable_mfu_metrics enable_mm_processor_stats "
            "kv_cache_metrics kv_cache_metrics_sample show_hidden_metrics_for_version"
        ),
        "requests have no other media than images, which are prepared with vLLM's defaults": (
            "allowed_local_media_path allowed_media_domains default_mm_loras ec_manager_config "
            "ec_transfer_config enable_mm_embeds enable_shm_tensor_arena enable_tower_connector_lora "
            "interleave_mm_strings media_io_kwargs mm_device_do_normalize mm_encoder_only "
            "mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_device video_pruning_method "
            "video_pruning_rate"
        ),
    }
)
_GONE = {
    "disable_log_requests": "leave it out: requests are not logged",
    "swap_space": "leave it out: vLLM recomputes instead of swapping",
    "worker_use_ray": "write distributed_executor_backend: ray",
    "max_context_len_to_capture": "write max_cudagraph_capture_size",
    "max_seq_len_to_capture": "write max_cudagraph_capture_size",
    "guided_decoding_backend": "write structured_outputs_config",
    "calculate_kv_scales": "leave it out: vLLM takes the scales from the model's files",
    "max_num_partial_prefills": "leave it out: long_prefill_token_threshold limits each prompt's part",
    "max_long_partial_prefills": "leave it out: long_prefill_token_threshold limits each prompt's part",
    "override_attention_dtype": "leave it out: vLLM chooses it",
    "lora_modules": "name the adapters under the key lora of the build config",
    "O": "write optimization_level",
    "chat_template": "set CHAT_TEMPLATE of the runner",
    "api_key": "set API_KEYS of the runner",
    **by_name(
        {
            "write hf_overrides: {...}": "rope_scaling rope_theta",
            "write speculative_config: {...}": (
                "speculative_model num_speculative_tokens speculative_draft_tensor_parallel_size "
                "ngram_prompt_lookup_max ngram_prompt_lookup_min"
            ),
            "leave it out: the model's files tell whether it generates or embeds": "task",
            "leave it out: calls and reasoning are found by the model's family (docs/families.md)": (
                "enable_auto_tool_choice tool_call_parser tool_parser_plugin enable_reasoning"
            ),
            "leave it out: the runner's settings tell where it listens (docs/settings.md)": "host port",
            "leave it out: this vLLM has nothing like it": (
                "num_scheduler_steps multi_step_stream_outputs use_v2_block_manager preemption_mode device "
                "num_lookahead_slots lora_extra_vocab_size long_lora_scaling_factors"
            ),
        }
    ),
}

TABLE = ArgumentTable(
    section="vllm",
    file=Path(__file__).resolve().with_suffix(".json"),
    library="vllm",
    words="vLLM",
    list_in="docs/vllm.md",
    same={"dtype": "dtype", "max_seq_len": "max_model_len", "max_batch_size": "max_num_seqs"},
    decided=_DECIDED,
    without_effect=_WITHOUT_EFFECT,
    gone=_GONE,
)
