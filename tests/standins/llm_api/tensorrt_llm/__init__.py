"""Stand-in for TensorRT-LLM's LLM API (``tests/standins/llm_api/signatures.json``) over a small generator.

It refuses unknown arguments and values of another type. An output repeats the prompt's tokens. With
``LLM_API_VERSION`` it has the parts of another version (``versions.json``).
"""

__version__ = "1.3.0rc7"

from .llm import LLM
from .sampling_params import SamplingParams
from .versions import become

become()

__all__ = ["LLM", "SamplingParams"]
