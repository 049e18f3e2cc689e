"""Where vLLM starts its core. This one's is a thread."""

from multiprocessing import get_context
from multiprocessing.context import BaseContext


def get_mp_context() -> BaseContext:
    return get_context("spawn")
