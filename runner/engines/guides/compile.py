"""Guides (schemas, regular expressions, grammars): compiles them, and follows one per output.

llguidance computes which tokens may come next from the guide and the tokenizer. A process with limits checks
each guide first (``check``). Guides are compiled outside the engine's loop and cached.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from errors.coded_error import CodedError
from errors.requests import GuideFailed, InvalidGuide
from runner.engines.guides.check import MEMORY_BYTES, Checker
from runner.engines.guides.errors import REMEDY, complexity_reason, first_line
from runner.engines.guides.grammar import checked, matcher
from runner.engines.protocol.checks import check_guide
from runner.engines.protocol.messages import Guide

_END_MARK = "<|cog-triton end of guide|>"
"""Our own token after the model's vocabulary: llguidance allows it where the output may end."""
_STACK_BYTES = 64 << 20
"""Address space of a compiling thread's stack: llguidance recurses, but not deeper than in ``check``."""
_LANES_CPU_S = (0.02, 0.2)
"""Processor time of a check. A guide that exceeds the first limit moves to the next lane, so that other
guides don't wait for it."""
_TOO_LARGE = f"it takes more than {_LANES_CPU_S[-1]:g} s or {MEMORY_BYTES >> 20} MiB to compile; {REMEDY}"
_MAX_CACHED_BYTES = 64 << 20
_LEAST_BYTES = 1 << 20
"""Of a cached guide, with what its outputs will add."""
_FOLLOW_S = 0.1
_FOLLOW_TOKEN_S = 0.005
"""Processor time that an output may take to follow its guide: at first, and for each token."""

Compiled = Callable[["Follower | CodedError | None"], None]
"""Gets None if the request was cancelled before."""
_Job = tuple[Guide, Compiled, Callable[[], bool]]
Mask = npt.NDArray[np.bool_]

log = logging.getLogger("cog_triton.engine")


class Follower:
    """The state of one output in its guide. Used by one thread at a time."""

    def __init__(self, guide: Guide, matcher: LLMatcher, end_mark: int) -> None:
        self._guide = guide
        self._matcher = matcher
        self._end_mark = end_mark
        self._num_tokens = 0
        self._spent_s = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the output can only end here."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allowed(self, vocab_size: int) -> tuple[Mask, bool]:
        """Which tokens may come next, [vocab_size], and whether the output may end. Raises GuideFailed."""
        start_s = time.thread_time()
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise self._stuck()
        self._spend(start_s)
        bits = np.unpackbits(packed, bitorder="little")
        allowed = np.zeros(vocab_size, dtype=np.bool_)
        known = min(vocab_size, self._end_mark)
        allowed[:known] = bits[:known]
        return allowed, bool(bits[self._end_mark])

    def take(self, token: int) -> None:
        """Add the next token of the output. Raises GuideFailed."""
        self._num_tokens += 1
        start_s = time.thread_time()
        if not self._matcher.consume_token(token):
            raise self._stuck()
        self._spend(start_s)

    def failed(self, reason: str) -> GuideFailed:
        return GuideFailed(guide_type=self._guide.type, tokens=self._num_tokens, reason=reason)

    def _stuck(self) -> GuideFailed:
        error = self._matcher.get_error()
        return self.failed(complexity_reason(error) or first_line(error))

    def _spend(self, start_s: float) -> None:
        """Other outputs wait for this one's guide at each step, so its time is limited."""
        self._spent_s += time.thread_time() - start_s
        if self._spent_s > _FOLLOW_S + _FOLLOW_TOKEN_S * self._num_tokens:
            raise self.failed(f"it takes more than {_FOLLOW_TOKEN_S * 1e3:g} ms for each token; {REMEDY}")


class GuideCompiler:
    """Compiles guides for one tokenizer, in two threads: one for those that take long."""

    def __init__(self, tokenizer_file: Path) -> None:
        """Raises errors of tokenizers and llguidance for a file that is invalid or not supported."""
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.add_special_tokens([_END_MARK])
        end_mark = tokenizer.token_to_id(_END_MARK)
        assert end_mark is not None, "it was added just now"
        self._end_mark = end_mark
        self._tokenizer = LLTokenizer(tokenizer.to_str(), eos_token=self._end_mark)
        self._cache: OrderedDict[Guide, tuple[LLMatcher, int]] = OrderedDict()
        """Each with its size in bytes."""
        self._lock = threading.Lock()
        self._lanes: list[SimpleQueue[_Job]] = [SimpleQueue() for _ in _LANES_CPU_S]
        usual_bytes = threading.stack_size(_STACK_BYTES)
        for lane in range(len(self._lanes)):
            threading.Thread(target=self._run, args=(lane,), name=f"guides-{lane}", daemon=True).start()
        threading.stack_size(usual_bytes)

    def submit(self, guide: Guide, compiled: Compiled, is_wanted: Callable[[], bool]) -> None:
        """Call ``compiled`` with the result: at once if the guide is cached, else from a thread.

        A guide is not compiled if the request is not wanted any more when its turn comes.
        """
        if (follower := self._cached(guide)) is not None:
            compiled(follower)
        else:
            self._lanes[0].put((guide, compiled, is_wanted))

    def _run(self, lane: int) -> None:
        checker = Checker()
        while True:
            guide, compiled, is_wanted = self._lanes[lane].get()
            answer = self._result(guide, checker, _LANES_CPU_S[lane]) if is_wanted() else None
            if answer is None and is_wanted():
                if lane + 1 < len(self._lanes):
                    self._lanes[lane + 1].put((guide, compiled, is_wanted))
                    continue
                answer = InvalidGuide(guide_type=guide.type, reason=_TOO_LARGE)
            compiled(answer)

    def _result(self, guide: Guide, checker: Checker, cpu_s: float) -> Follower | CodedError | None:
        """None if it exceeds a limit of the lane."""
        try:
            if (follower := self._cached(guide)) is not None:
                return follower
            check_guide(guide)
            if (answer := checker.check(guide, cpu_s)) is None:
                return None
            if answer.error is not None:
                return answer.error.restore()
            compiled = checked(guide, matcher(self._tokenizer, answer.grammar))
            self._keep(guide, compiled, answer.num_bytes)
            return Follower(guide, compiled.deep_copy(), self._end_mark)
        except CodedError as error:
            return error
        # An unknown error of the library fails this guide; its request must not wait for ever.
        except Exception as exc:  # noqa: BLE001
            reason = f"{type(exc).__name__}: {first_line(str(exc))}"
            return InvalidGuide(guide_type=guide.type, reason=reason)

    def _keep(self, guide: Guide, compiled: LLMatcher, num_bytes: int) -> None:
        with self._lock:
            self._cache[guide] = compiled, num_bytes + _LEAST_BYTES
            while sum(size for _, size in self._cache.values()) > _MAX_CACHED_BYTES:
                self._cache.popitem(last=False)

    def _cached(self, guide: Guide) -> Follower | None:
        with self._lock:
            if (cached := self._cache.get(guide)) is None:
                return None
            self._cache.move_to_end(guide)
        return Follower(guide, cached[0].deep_copy(), self._end_mark)


def open_guides(engine_dir: Path) -> GuideCompiler | None:
    """The engine's compiler; None, with a warning, if its tokenizer is not supported."""
    try:
        return GuideCompiler(engine_dir / "tokenizer.json")
    # tokenizers raises bare Exception, llguidance many kinds of errors.
    except Exception as exc:  # noqa: BLE001
        log.warning("guides are not supported with this tokenizer: %s", first_line(str(exc)))
        return None
