"""A random model, served by the ``llama_cpp`` engine, and the same weights in transformers."""

import pytest

from tests.runner.engines.batched.conftest import directory, max_length, serve, served

__all__ = ["directory", "max_length", "serve", "served"]


@pytest.fixture(scope="module")
def kind() -> str:
    return "llama_cpp"
