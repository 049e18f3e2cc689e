"""Stand-in engine kinds for what a good engine never does, known to an engine server and to its child.

Kinds: ``brittle`` and ``brittle_child``, and ``paced_child``, the paced engine in a child.
"""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from engine.machine.root import SOURCE_ROOT
from errors.requests import PromptTooLong
from runner.engines.protocol.adapter import Sink
from runner.engines.protocol.messages import Ready, Statistics, Submit, TokenLogProb

FAIL, FAIL_CODED, BREAK, FEW_LOG_PROBS, NO_LOG_PROBS = range(5)
INFINITE_LOG_PROBS, HOLD, RELEASE, DIE, BEAMS, NO_STATISTICS = range(5, 11)
"""What a request with this as its first input id has the engine do; others get the token 7 and an end."""
ANSWER = 20

_KINDS = """
import os
from engine.kinds import KINDS, Kind
CAPABILITIES = frozenset({"log_probs"})
MODULES = {"brittle": "tests.runner.engines.server.brittle", "paced": "runner.engines.paced.adapter"}
for name, module in MODULES.items():
    KINDS.setdefault(name, Kind(name, module, capabilities=CAPABILITIES))
    KINDS[f"{name}_child"] = Kind(f"{name}_child", module, runs_in_child=True, capabilities=CAPABILITIES)
if stall_timeout := os.environ.get("TEST_STALL_TIMEOUT_S"):
    import runner.engines.server.clients
    runner.engines.server.clients._STALL_TIMEOUT_S = float(stall_timeout)
"""


def with_kinds(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of an engine server that has these kinds."""
    (folder / "sitecustomize.py").write_text(_KINDS)
    return {"PYTHONPATH": f"{folder}:{SOURCE_ROOT}", **more}


class BrittleEngine:
    """Does what the first input id says."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: list[int] = []
        self._has_statistics = True
        self.ready = Ready("brittle", vocab_size=100, max_sequence_length=100, max_batch_size=1)

    def submit(self, request: Submit) -> None:
        number, sink = request.request_id, self._sink
        match request.input_ids[0]:
            case 0:
                sink.failed(number, ValueError("no\nsuch luck"))
            case 1:
                sink.failed(number, PromptTooLong(prompt_tokens=3, max_input_tokens=2))
            case 2:
                sink.tokens([(number, [7])])
                sink.broken(MemoryError("out of memory"))
            case 3:
                sink.log_probs([(number, [TokenLogProb(-1.0)])])
                sink.tokens([(number, [7, 8])])
                sink.finished(number, "end")
            case 4:
                self._held.append(number)
                sink.tokens([(number, [7])])
            case 5:
                infinite = TokenLogProb(float("-inf"), [(7, float("-inf")), (8, -0.5)])
                sink.log_probs([(number, [TokenLogProb(-0.5, [(8, -0.5)]), infinite])])
                sink.tokens([(number, [8, 7])])
                sink.finished(number, "end")
            case 6:
                self._held.append(number)
            case 7:
                sink.tokens([(held, [held % 100, 7]) for held in self._held])
                self._held = [number]
            case 8:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            case 9:
                sink.finished(number, "length", [[1, 2], [3]])
            case 10:
                self._has_statistics = False
            case _:
                sink.tokens([(number, [7])])
                sink.finished(number, "end")

    def cancel(self, request_id: int) -> None:
        if request_id in self._held:
            self._held.remove(request_id)
            self._sink.finished(request_id, "cancelled")

    def statistics(self) -> Statistics:
        if not self._has_statistics:
            raise RuntimeError("no statistics")
        return Statistics(active=len(self._held), queued=0)

    def close(self) -> None:
        pass


def load(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> BrittleEngine:
    if "missing" in options:
        raise ModuleNotFoundError(name=options["missing"])
    return BrittleEngine(sink)
