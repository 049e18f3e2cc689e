"""24xx: what TensorRT-LLM's executor says no to, and what becomes of its ranks."""

from __future__ import annotations

from errors.base import CodedError


class RequestRefused(CodedError):
    code = "E2401"
    summary = "TensorRT-LLM refused or failed this request alone"
    template = "TensorRT-LLM did not serve this request: {reason}"


class QueueFull(CodedError):
    code = "E2402"
    summary = "The engine's queue of waiting requests is full"
    template = (
        "The engine's queue is full ({max_queue_size} requests wait); "
        "send the request again later, or raise max_queue_size of the server configuration."
    )


class RankEnded(CodedError):
    code = "E2403"
    summary = "A process of an engine on several GPUs ended, and all its others with it"
    template = "The ranks of the {world_size}-GPU engine ended ({reason}); their last log lines: {log_tail}"
