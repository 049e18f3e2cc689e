"""Running sequences, whose tokens and ends are reported to the sink."""

from transformers.generation.continuous_batching.requests import GenerationOutput

from runner.engines.batched_engine import report_end, report_step
from runner.engines.protocol.adapter import Sink
from runner.engines.sequence import Sequence


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
        report_step(self._sink, [(sequence, output.generated_tokens[-1]) for output, sequence in stepped])
        unfinished = []
        for output, sequence in stepped:
            if output.is_finished():
                self.end(output.request_id)
            elif sequence.finish_reason or sequence.error:
                unfinished.append(output.request_id)
        return unfinished

    def end(self, key: str) -> None:
        """Report the end of a sequence whose resources are free."""
        if sequence := self.pop(key, None):
            report_end(self._sink, sequence)

    def fail(self, key: str, error: Exception) -> None:
        sequence = self.pop(key, None)
        if sequence:
            self._sink.failed(sequence.request.request_id, error)
