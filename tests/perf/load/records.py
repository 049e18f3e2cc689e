"""Records of requests that were never sent, with what a test wants of them."""

from array import array

from perf.load.record import Answer, Record


def record(
    sent_s: float,
    ended_s: float,
    *,
    scheduled_s: float | None = None,
    output_s: tuple[float, ...] = (),
    tokens: int | None = None,
    **answer: object,
) -> Record:
    made = Answer(output_s=array("d", output_s), output_tokens=len(output_s) if tokens is None else tokens)
    for name, value in answer.items():
        setattr(made, name, value)
    return Record(sent_s if scheduled_s is None else scheduled_s, sent_s, ended_s, made)
