"""NVIDIA's tensorrt_llm backend, stood in for as a Python model of Triton: it repeats the prompt's tokens.

As the backend does: responses of new tokens, an empty last one, no finish reason, a thread that asks Triton
which requests were cancelled. For tests, a request's temperature is the seconds that each token takes, and
what runs and was cancelled is counted in a file.
"""

import json
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_POLL_S = 0.01
_TOKEN_S = 0.002
_MAX_INPUT_TOKENS = 500


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self._is_decoupled = config["model_transaction_policy"]["decoupled"]
        self._record = Path(config["parameters"]["record"]["string_value"])
        self._running = 0
        self._cancelled = 0
        self._lock = threading.Lock()
        self._count()

    def execute(self, requests):
        for request in requests:
            tensors = {each.name(): each.as_numpy().copy() for each in request.inputs()}
            sender = request.get_response_sender()
            threading.Thread(target=self._generate, args=(tensors, sender), daemon=True).start()

    def _generate(self, tensors, sender):
        with self._lock:
            self._running += 1
            self._count()
        prompt = tensors["input_ids"][0]
        count = int(tensors["request_output_len"].reshape(-1)[0])
        token_s = float(tensors.get("temperature", np.array(_TOKEN_S)).reshape(-1)[0])
        end_id = int(tensors.get("end_id", np.array(-1)).reshape(-1)[0])
        tokens, is_cancelled = [], False
        is_too_long = len(prompt) > _MAX_INPUT_TOKENS
        if is_too_long:
            message = f"Prompt length ({len(prompt)}) exceeds maximum input length ({_MAX_INPUT_TOKENS})."
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message)), flags=FINAL)
            count = 0
        for index in range(count):
            due_s = time.monotonic() + token_s
            while time.monotonic() < due_s and not is_cancelled:
                is_cancelled = sender.is_cancelled()
                time.sleep(min(_POLL_S, token_s))
            if is_cancelled or prompt[index % len(prompt)] == end_id:
                break
            tokens.append(prompt[index % len(prompt)])
            if self._is_decoupled:
                sender.send(_response(tokens[-1:]))
        with self._lock:
            self._running -= 1
            self._cancelled += is_cancelled
            self._count()
        if not is_too_long:
            response = _response([]) if self._is_decoupled else _response(tokens, padding=3)
            sender.send(response, flags=FINAL)

    def _count(self):
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps({"running": self._running, "cancelled": self._cancelled}))
        new.rename(self._record)


def _response(tokens, padding=0):
    ids = np.array([[[*tokens, *[-1] * padding]]], np.int32)
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("output_ids", ids),
            pb_utils.Tensor("sequence_length", np.array([[len(tokens)]], np.int32)),
        ]
    )
