"""Running sequences, whose tokens and ends are reported to the sink."""

from transformers.generation.continuous_batching.requests import GenerationOutput

from errors.coded_error import CodedError
from runner.engines.protocol.adapter import Sink
from runner.engines.transformers.sequence import Sequence


class RunningSequences(dict[str, Sequence]):
    """The sequences between their submission and their end, by the library's request id.

    ``add`` is called by the submitting thread, everything else by the loop's thread. The caller that removes
    a sequence reports its end, so that it is reported once.
    """

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink

    def add(self, sequence: Sequence) -> str:
        key = str(sequence.request.request_id)
        self[key] = sequence
        return key

    def deliver(self, outputs: list[GenerationOutput]) -> list[str]:
        """Report one step. Return the ids of ended sequences that the library would continue."""
        stepped = [(output, self[output.request_id]) for output in outputs]
        for output, sequence in stepped:
            _append(sequence, output.generated_tokens[-1])
        if first := [each for _, each in stepped if each.num_generated == 1]:
            self._sink.cached([(each.request.request_id, each.cached_tokens) for each in first])
        sound = [sequence for _, sequence in stepped if sequence.error is None]
        wanting = [sequence for sequence in sound if sequence.log_probs]
        if wanting:
            # Each sequence has the value of the token that is delivered now.
            self._sink.log_probs([(each.request.request_id, [each.log_probs.pop(0)]) for each in wanting])
        self._sink.tokens([(each.request.request_id, each.tokens[-1:]) for each in sound])
        unfinished = []
        for output, sequence in stepped:
            if output.is_finished():
                self.end(output.request_id)
            elif sequence.finish_reason or sequence.error:
                unfinished.append(output.request_id)
        return unfinished

    def end(self, key: str) -> None:
        """Report the end of a sequence whose resources are free."""
        sequence = self.pop(key, None)
        if sequence and sequence.error:
            self._sink.failed(sequence.request.request_id, sequence.error)
        elif sequence:
            self._sink.finished(sequence.request.request_id, sequence.finish_reason or "cancelled")

    def fail(self, key: str, error: Exception) -> None:
        sequence = self.pop(key, None)
        if sequence:
            self._sink.failed(sequence.request.request_id, error)


def _append(sequence: Sequence, token: int) -> None:
    try:
        if sequence.error is None:
            sequence.append(token)
    except CodedError as error:
        sequence.error = error
