"""Faults that the ``paced`` engine injects on request, to rehearse a gateway without a GPU.

They are off unless the runner starts with ``COG_TRITON_FAULTS``, which only this engine kind reads: a
comma-separated list of ``requests`` (a request selects a fault by its seed, see ``FAULT_SEEDS``),
``slow_start=SECONDS``, and ``<fault>_every=N`` (for each Nth request). Faults follow the first tokens.
"""

import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from errors.engines import EngineFailed
from errors.settings import InvalidSetting
from runner.engines.protocol.messages import Submit

VARIABLE = "COG_TRITON_FAULTS"
FAULT_SEEDS = {
    990001: "stall",
    990002: "hang",
    990003: "crash",
    990004: "garbage",
    990005: "fail",
    990006: "crash_at_once",
}
"""Faults by seed. ``stall``: no more tokens for this request; ``hang``: for any request; ``crash``: SIGSEGV;
``garbage``: random tokens; ``fail``: E2109; ``crash_at_once``: SIGSEGV before the first token."""

_TOKENS_BEFORE = 3


@dataclass(frozen=True)
class Faults:
    """The configured faults. ``every``: by fault, the number of requests of which the last one has it."""

    by_seed: bool = False
    slow_start_s: float = 0.0
    every: Mapping[str, int] = field(default_factory=dict)

    def of(self, request: Submit, number: int) -> str | None:
        """Return the fault of a request; ``number`` counts the requests since the start."""
        if self.by_seed and request.sampling.seed in FAULT_SEEDS:
            return FAULT_SEEDS[request.sampling.seed]
        return next((fault for fault, count in self.every.items() if number % count == 0), None)


def parse_faults(text: str) -> Faults:
    """Parse the variable's value. Raises E1006."""
    by_seed, slow_start_s, every = False, 0.0, {}
    for item in filter(None, map(str.strip, text.split(","))):
        key, _, value = item.partition("=")
        try:
            if item == "requests":
                by_seed = True
            elif key == "slow_start":
                slow_start_s = float(value)
            elif key.removesuffix("_every") in FAULT_SEEDS.values() and key.endswith("_every"):
                every[key.removesuffix("_every")] = max(int(value), 1)
            else:
                raise ValueError
        except ValueError:
            expected = "a list of requests, slow_start=SECONDS and FAULT_every=NUMBER"
            raise InvalidSetting(name=VARIABLE, expected=expected, value=item) from None
    return Faults(by_seed, slow_start_s, every)


def inject_fault(fault: str, output_tokens: int, tokens: list[int], vocab_size: int) -> list[int]:
    """Change the next ``tokens`` of a request that had ``output_tokens`` before. Raises E2109."""
    if fault == "crash_at_once" or (fault == "crash" and output_tokens >= _TOKENS_BEFORE):
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(1)  # The signal may arrive in another thread.
    if output_tokens < _TOKENS_BEFORE:
        return tokens
    if fault == "hang":
        while True:
            time.sleep(3600)
    if fault == "fail":
        raise EngineFailed(engine_kind="paced", reason=f"injected by {VARIABLE}")
    return [] if fault == "stall" else [random.randrange(vocab_size) for _ in tokens]
