"""Stand-in for TensorRT-LLM's LLM API (``tests/standins/llm_api/signatures.json``) over a small generator.

It refuses unknown arguments and values of another type. An output repeats the prompt's tokens.
"""

__version__ = "1.3.0rc7"

from .llm import LLM
from .sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]
