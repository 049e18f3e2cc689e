"""Triton's ``generate_stream``: the engine slot (token ids) and the ensemble (text)."""

import json
from typing import Any

from perf.load.record import Answer
from perf.load.response import Response, events
from perf.load.targets.target import Posting, Workload
from runner.triton_server.model_names import SLOT

_FIRST_TOKEN_ID = 10
"""Below it, vocabularies keep what is special."""
_TOKEN_IDS = 80


class TritonTarget(Posting):
    """A target among Triton's models. ``model`` is the slot's name or an ensemble's with its tensors."""

    def __init__(self, url: str, model: str, workload: Workload) -> None:
        self._is_slot = model == SLOT
        self._asked_tokens = workload.output_tokens if workload.is_fixed_length else None
        inputs = _slot_inputs(workload) if self._is_slot else _ensemble_inputs(workload)
        if workload.is_fixed_length:
            inputs["min_length"] = workload.output_tokens
        super().__init__(url, f"/v2/models/{model}/generate_stream", {**inputs, **workload.extra}, {})

    def read_ok(self, response: Response) -> Answer:
        answer = Answer()
        for event in events(response):
            document = json.loads(event.data)
            if "error" in document:
                return Answer(outcome="failed", error=str(document["error"]))
            tokens = _token_count(document) if self._is_slot else 1
            if tokens:
                answer.output_s.append(event.at_s)
                answer.output_tokens += tokens
        if not self._is_slot and self._asked_tokens is not None:
            answer.output_tokens = self._asked_tokens  # Its events carry text of any number of tokens.
        if not answer.output_tokens:
            return Answer(outcome="failed", error="the stream ended without a token")
        return answer


def _slot_inputs(workload: Workload) -> dict[str, Any]:
    ids = [_FIRST_TOKEN_ID + index % _TOKEN_IDS for index in range(workload.input_tokens)]
    lengths = {"input_lengths": len(ids), "request_output_len": workload.output_tokens}
    return {"input_ids": ids, **lengths, "streaming": True}


def _ensemble_inputs(workload: Workload) -> dict[str, Any]:
    inputs = {"text_input": workload.prompt, "max_tokens": workload.output_tokens, "stream": True}
    return {**inputs, "bad_words": "", "stop_words": ""}


def _token_count(document: dict[str, Any]) -> int:
    """Return the tokens of one response; Triton writes a tensor of one element as a bare number."""
    output_ids = document.get("output_ids", [])
    return len(output_ids) if isinstance(output_ids, list) else 1
