"""The library's model runner, with tokens chosen after its step: a CUDA graph can't depend on requests.

The graph consists of the forward pass and the argmax, which is the token of a plain greedy request. If
requests of a step sample, penalize or forbid tokens, their tokens are chosen here from the scores of the
graph.
"""

from typing import Any

import torch
from torch import nn
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.utils import stream_context

from runner.engines.transformers.sampling import SamplingProcessor


class ChoosingRunner(ModelRunner):  # type: ignore[misc]
    """A replacement of ``ModelRunner``; ``sampler`` must not change the scores itself (``is_deferred``)."""

    def __init__(self, sampler: SamplingProcessor, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._sampler = sampler
        self._graph_scores: dict[tuple[int, ...], torch.Tensor] = {}

    def compute_batch(self, model: nn.Module, batch_data: dict[str, Any]) -> None:
        self._sampler.seen.clear()
        super().compute_batch(model, batch_data)
        io = self.inputs_and_outputs
        seen = self._sampler.seen
        # NOTE: capturing a graph runs the step twice: once for its result, and once to record it, which
        # computes nothing. Each replay fills the tensors of the second run.
        if len(seen) == 2:
            self._graph_scores[io._get_graph_key()] = seen[1]
        count = self._sampler.count
        if not count or not self._sampler.is_choosing():
            return
        scores = seen[0] if seen else self._graph_scores[io._get_graph_key()]
        with stream_context(io.compute_stream):
            chosen = self._sampler.choose(scores[:count]).argmax(dim=-1)
            io.get_cb_kwargs()[2][0, :count].copy_(chosen)
