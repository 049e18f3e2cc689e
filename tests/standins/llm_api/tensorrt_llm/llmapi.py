"""Stand-in for ``tensorrt_llm.llmapi``."""

from .llm import LLM, CompletionOutput, RequestOutput
from .sampling_params import GuidedDecodingParams, SamplingParams

__all__ = ["LLM", "CompletionOutput", "GuidedDecodingParams", "RequestOutput", "SamplingParams"]
