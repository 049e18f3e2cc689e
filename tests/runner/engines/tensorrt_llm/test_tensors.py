"""Tensors of a request reach TensorRT-LLM as torch's, in their types and shapes."""

import numpy as np
import pytest

from runner.engines.protocol.messages import Sampling, Submit, Tensor
from runner.engines.tensorrt_llm.requests import executor_request
from tests.runner.engines.tensorrt_llm.bindings import bindings

torch = pytest.importorskip("torch")
trtllm = bindings()


def tensor(values: object, dtype: str) -> Tensor:
    array = np.array(values, dtype)
    return Tensor(dtype, list(array.shape), array.tobytes())


def test_tensors_keep_their_values() -> None:
    tensors = {
        "embedding_bias": tensor([0.5, -1.0], "float32"),
        "lora_weights": tensor([[1, 2]], "float16"),
        "lora_config": tensor([[0, 1, 8]], "int32"),
        "prompt_embedding_table": tensor([[1, 2], [3, 4]], "float16"),
        "prompt_table_extra_ids": tensor([7, 8, 9], "uint64"),
        "draft_input_ids": tensor([5, 6], "int32"),
        "draft_acceptance_threshold": tensor(0.5, "float32"),
    }
    request = executor_request(
        trtllm, Submit(1, [3, 4], 5, Sampling(top_k=1), lora_task_id=12, tensors=tensors)
    )
    assert request.embedding_bias.tolist() == [0.5, -1.0]
    assert request.lora_config.task_id == 12
    assert request.lora_config.weights.dtype == torch.float16
    assert request.lora_config.config.tolist() == [[0, 1, 8]]
    assert request.prompt_tuning_config.embedding_table.shape == (2, 2)
    assert request.prompt_tuning_config.input_token_extra_ids == [7, 8]
    assert request.external_draft_tokens_config.tokens == [5, 6]
    assert request.external_draft_tokens_config.acceptance_threshold == 0.5
