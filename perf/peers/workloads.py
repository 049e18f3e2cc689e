"""The workloads of ``perf peers``, by name, and the prompts of each."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from errors.requests import InvalidInput

_WORD_MARKS = ("Ġ", "▁")
"""Spellings in vocabularies of the space before a word."""
_FIRST_WORD, _LAST_WORDS = 300, 400
"""Ids that may end a prompt: known models go on with the next ids, which are text for long enough."""


@dataclass(frozen=True)
class Workload:
    """A closed loop of ``streams``, or Poisson arrivals at a ``share_of_capacity``. Lengths are from..to."""

    streams: int
    requests: int
    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    shared_tokens: int = 0
    """Tokens of the prompt's beginning that are the same in all requests."""
    step_s: float = 0.0
    """Seconds of a step of the stand-in executor."""
    share_of_capacity: float | None = None
    is_whole: bool = False
    """True if the answers are no streams."""

    @property
    def most_tokens(self) -> int:
        return self.input_tokens[1] + self.output_tokens[1]


_MIXED = Workload(256, 512, (16, 640), (16, 320), step_s=0.04)
CAPACITY = "mixed"
"""The workload whose highest rate of requests is the capacity for those with a share of it."""
WORKLOADS = {
    "32": Workload(32, 192, (128, 128), (256, 256)),
    "256": Workload(256, 512, (128, 128), (256, 256)),
    "1024": Workload(1024, 2048, (128, 128), (256, 256)),
    "32-paced": Workload(32, 64, (128, 128), (256, 256), step_s=0.02),
    "256-paced": Workload(256, 256, (128, 128), (256, 256), step_s=0.04),
    "256-whole": Workload(256, 256, (128, 128), (256, 256), step_s=0.04, is_whole=True),
    "starts": Workload(64, 1500, (32, 32), (1, 1)),
    "prefix": Workload(64, 600, (704, 704), (16, 16), 640),
    "prefix-10k": Workload(64, 600, (10_064, 10_064), (16, 16), 10_000),
    CAPACITY: _MIXED,
    "mixed-65": Workload(**{**vars(_MIXED), "requests": 300, "share_of_capacity": 0.65}),
    "mixed-80": Workload(**{**vars(_MIXED), "requests": 300, "share_of_capacity": 0.80}),
}


def parse_workloads(names: Sequence[str], most_tokens: int | None) -> dict[str, Workload]:
    """Return workloads by name, first that which measures the capacity where another needs it.

    A name that is not in the table is STREAMSxINPUTxOUTPUT: a closed loop with four requests a stream. Raises
    InvalidInput for another name, or for one that is too long for an engine.
    """
    found = {name: WORKLOADS.get(name) or _custom(name) for name in names}
    if any(each.share_of_capacity for each in found.values()):
        found = {CAPACITY: WORKLOADS[CAPACITY], **found}
    for name, each in found.items():
        if most_tokens and each.most_tokens > most_tokens:
            expected = f"of requests that fit the engine: at most {most_tokens} tokens"
            raise InvalidInput(name="workloads", expected=expected, value=name)
    return found


def _custom(name: str) -> Workload:
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,4})x([1-9]\d{0,4})", name)
    if match is None:
        expected = f"some of {', '.join(WORKLOADS)}, or STREAMSxINPUTxOUTPUT"
        raise InvalidInput(name="workloads", expected=expected, value=name)
    streams, inputs, outputs = map(int, match.groups())
    return Workload(streams, 4 * streams, (inputs, inputs), (outputs, outputs))


class Prompt(NamedTuple):
    text: str
    ids: list[int]
    output_tokens: int


class Words:
    """Random words of a tokenizer that are one token each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        words = {
            index: " " + token[1:]
            for token, index in tokenizer.get_vocab().items()
            if token.startswith(_WORD_MARKS) and token[1:].isascii() and token[1:].isalpha()
        }
        size = tokenizer.get_vocab_size()
        self._words = [words[index] for index in sorted(words)]
        self._ends = [words[index] for index in sorted(words) if _FIRST_WORD < index < size - _LAST_WORDS]
        self._shared = random.Random(0).choices(self._words, k=20_000)

    def prompts(self, workload: Workload, count: int, seed: str, *, words: str = "") -> list[Prompt]:
        """Make ``count`` prompts: ``seed`` sets their lengths, and together with ``words`` their words."""
        lengths, rng = random.Random(seed), random.Random(f"{seed} {words}")
        shared = self._shared[: workload.shared_tokens]
        found = []
        for _ in range(count):
            own = lengths.randint(*workload.input_tokens) - len(shared) - 1
            text = "".join([*shared, *rng.choices(self._words, k=own), rng.choice(self._ends)])
            ids: list[int] = self.tokenizer.encode(text).ids
            found.append(Prompt(text, ids, lengths.randint(*workload.output_tokens)))
        return found
