"""Embeddings: waiting inputs are run in batches, and each becomes one vector as the model's files say."""

import threading
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from engine.pooling import Pooling
from runner.engines.protocol.adapter import Sink
from runner.engines.protocol.messages import Ready, Statistics, Submit

_STEP_TOKENS = {"cpu": 1024, "cuda": 16384}
"""Most tokens of a batch, padding included; a longer input is run alone."""
_CLOSE_TIMEOUT_S = 30.0


class EmbeddingEngine:
    """A loaded embedding model. See ``runner.engines.protocol.adapter.EngineAdapter``."""

    def __init__(self, model: PreTrainedModel, pooling: Pooling, sink: Sink, ready: Ready) -> None:
        model.config.use_cache = False
        self._model = model.eval()
        self._pooling = pooling
        self._pad_id = model.config.get_text_config().pad_token_id or 0
        self._sink = sink
        self.ready = ready
        self._step_tokens = _STEP_TOKENS[model.device.type]
        self._wake = threading.Condition()
        self._waiting: dict[int, list[int]] = {}
        """Token ids by request, the oldest first."""
        self._running: set[int] = set()
        """Requests of the batch, less those that were cancelled."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="embedding", daemon=True)
        self._thread.start()

    def submit(self, request: Submit) -> None:
        with self._wake:
            self._waiting[request.request_id] = request.input_ids
            self._wake.notify()

    def cancel(self, request_id: int) -> None:
        with self._wake:
            was_waiting = self._waiting.pop(request_id, None) is not None
            self._running.discard(request_id)
        if was_waiting:
            self._sink.finished(request_id, "cancelled")

    def statistics(self) -> Statistics:
        return Statistics(active=len(self._running), queued=len(self._waiting))

    def close(self) -> None:
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._finish(batch)
            except Exception as exc:  # noqa: BLE001 - of the library: other requests go on
                self._finish_alone(batch, exc)

    def _next_batch(self) -> dict[int, list[int]]:
        """Wait for requests and return a batch; empty if the engine is closed."""
        with self._wake:
            while not self._waiting and not self._is_closed:
                self._wake.wait()
            batch: dict[int, list[int]] = {}
            longest = 0
            for request_id, ids in () if self._is_closed else self._waiting.items():
                longest = max(longest, len(ids))
                if batch and longest * (len(batch) + 1) > self._step_tokens:
                    break
                batch[request_id] = ids
                if len(batch) == self.ready.max_batch_size:
                    break
            for request_id in batch:
                del self._waiting[request_id]
            self._running = set(batch)
            return batch

    def _finish(self, batch: dict[int, list[int]]) -> None:
        vectors = self._embed(list(batch.values())).numpy()
        for request_id, vector in zip(batch, vectors, strict=True):
            with self._wake:
                is_wanted = request_id in self._running
                self._running.discard(request_id)
            if is_wanted:
                self._sink.finished(request_id, "end", embedding=vector.tobytes())
            else:
                self._sink.finished(request_id, "cancelled")

    def _finish_alone(self, batch: dict[int, list[int]], error: Exception) -> None:
        """Run the requests of a failed batch one by one, so that only the ones at fault fail."""
        for request_id, ids in batch.items():
            try:
                if len(batch) == 1:
                    raise error
                self._finish({request_id: ids})
            except Exception as exc:  # noqa: BLE001 - as above
                self._sink.failed(request_id, exc)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _embed(self, inputs: Sequence[list[int]]) -> torch.Tensor:
        """Return the vectors of all inputs: 32-bit floats on the CPU."""
        device = self._model.device
        lengths = torch.tensor([len(ids) for ids in inputs])
        longest = int(lengths.max())
        padded = torch.tensor([[*ids, *[self._pad_id] * (longest - len(ids))] for ids in inputs])
        mask = torch.arange(longest) < lengths[:, None]
        output = self._model(input_ids=padded.to(device), attention_mask=mask.long().to(device))
        vectors = pool(output.last_hidden_state.float(), mask.to(device), self._pooling)
        return vectors.cpu()


def pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return a vector for each row of ``hidden`` [inputs, tokens, size]; ``mask`` is False at padding."""
    lengths = mask.sum(1)
    if pooling.mode == "cls":
        vectors = hidden[:, 0]
    elif pooling.mode == "lasttoken":
        vectors = hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
    else:
        vectors = (hidden * mask[:, :, None]).sum(1) / lengths[:, None]
    return torch.nn.functional.normalize(vectors) if pooling.is_normalized else vectors
