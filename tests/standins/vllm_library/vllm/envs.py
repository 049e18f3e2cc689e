"""The variables that the adapter sets or reads, with vLLM's defaults."""

from __future__ import annotations

VLLM_CACHE_ROOT = None
VLLM_ENABLE_CUDA_COMPATIBILITY = False
VLLM_ENABLE_STARTUP_PLAN = False
VLLM_HOST_IP = ""
VLLM_MAX_BAD_WORDS_TOTAL_TOKENS = 1024
VLLM_MAX_NUM_BAD_WORDS = 128
VLLM_NO_USAGE_STATS = False
VLLM_USE_FLASHINFER_SAMPLER = None
VLLM_WORKER_MULTIPROC_METHOD = "fork"
