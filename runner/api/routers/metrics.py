"""The engine's figures by the names of vLLM's metrics, which routers and autoscalers of vLLM read."""

import time
from collections.abc import Sequence

from prometheus_client.metrics_core import Metric as Family

from runner.engines.protocol.messages import Ready, Statistics
from runner.observability.meter import Reading
from runner.observability.metrics import CACHED_TOKENS, INPUT_TOKENS, METRICS, metrics_of, samples


def router_families(
    readings: Sequence[Reading], model: str, ready: Ready, statistics: Statistics | None
) -> list[Family]:
    """Return the metrics of both APIs. ``statistics``: None while the engine is away; gauges are left out."""
    families: list[Family] = []
    labels = {"model_name": model, "engine": "0"}

    def add(name: str, value: float, meaning: str, labels: dict[str, str] = labels) -> None:
        kind = "counter" if name.endswith("_total") else "gauge"
        family = Family(name.removesuffix("_total"), meaning, kind)
        family.add_sample(name, labels, value)
        families.append(family)

    if statistics is not None:
        add("vllm:num_requests_running", statistics.active, "Requests in the engine's batch")
        add("vllm:num_requests_waiting", statistics.queued, "Requests in the engine's queue")
        used = statistics.cache_used or 0.0
        add("vllm:kv_cache_usage_perc", used, "Share of the KV cache in use, 0 to 1")
        add("vllm:gpu_cache_usage_perc", used, "The same by its older name")
    if ready.num_kv_blocks:
        sizes = {"block_size": str(ready.kv_block_tokens), "num_gpu_blocks": str(ready.num_kv_blocks)}
        add("vllm:cache_config_info", 1, "Size of the KV cache", {**sizes, "engine": "0"})
    if ready.max_running_adapters and statistics is not None:
        adapters = {
            "max_lora": str(ready.max_running_adapters),
            "running_lora_adapters": ",".join(statistics.running_adapters),
            "waiting_lora_adapters": ",".join(statistics.waiting_adapters),
        }
        add("vllm:lora_requests_info", time.time(), "LoRA adapters that requests use", adapters)
    for name, metric in (("queries", INPUT_TOKENS), ("hits", CACHED_TOKENS)):
        count = sum(
            sample.value
            for reading in readings
            if metrics_of(reading.source) == METRICS
            for sample in samples(metric, reading.all)
        )
        for prefix in ("vllm:", "vllm:gpu_"):
            add(f"{prefix}prefix_cache_{name}_total", count, metric.meaning)
    return families
