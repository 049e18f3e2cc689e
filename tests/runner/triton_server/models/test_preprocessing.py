"""The model ``preprocessing`` in this process, in a stand-in of Triton: responses that two threads send."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engines.protocol.arrival import PARAMETER, Arrived, announce
from tests.runner.paced_engine import make_paced_model
from tests.runner.slot.triton_standin import Client

LONG, SHORT = "Once upon a time there was a small engine. " * 120, "What is"


@pytest.fixture
def model(tmp_path: Path) -> Any:
    from runner.triton_server.models.preprocessing import TritonPythonModel

    paced = make_paced_model(tmp_path / "paced", 0)
    arrival = tmp_path / "arrival.json"
    announce(arrival, Arrived(end_ids=(0,), pad_id=0, max_prompt_tokens=1 << 16))
    values = {PARAMETER: str(arrival), "tokenizer_dir": str(paced.directory), "engine_kind": "paced"}
    values |= {"skip_special_tokens": "true", "add_special_tokens": "false", "end_id": "", "pad_id": ""}
    parameters = {name: {"string_value": value} for name, value in values.items()}
    model = TritonPythonModel()
    model.initialize({"model_config": json.dumps({"parameters": parameters})})
    return model


def test_no_tensor_is_freed_while_a_response_is_sent(model: Any) -> None:
    """Triton does it without Python's lock."""
    length = np.array([[5]], np.int32)
    given = [{"QUERY": np.array([[text]], object), "REQUEST_OUTPUT_LEN": length} for text in (LONG, SHORT)]
    clients = [Client("", tensors, {}) for tensors in given]
    assert model.execute(clients) is None
    counts = [each.receive_all()[0]["REQUEST_INPUT_LEN"] for each in clients]
    assert counts[0] > counts[1]
    (response,) = model.execute([Client("", given[1], {})])
    assert response.outputs["REQUEST_INPUT_LEN"] == counts[1]
