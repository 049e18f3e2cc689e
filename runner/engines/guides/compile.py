"""Compilation of guides (schemas, regular expressions, grammars).

llguidance computes which tokens may come next from the guide and the tokenizer. A process with limits checks
each guide first (``check``). Guides are compiled outside the engine's loop and cached.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from llguidance import LLTokenizer
from tokenizers import Tokenizer

from errors.coded_error import CodedError
from errors.requests import InvalidGuide
from runner.engines.guides.check import MEMORY_BYTES, Checker
from runner.engines.guides.errors import REMEDY, first_line
from runner.engines.guides.follow import CompiledGuide, Follower, SlowMasks
from runner.engines.guides.grammar import check, matcher
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
_MAX_CACHED_BYTES = 32 << 20
_LEAST_BYTES = 1 << 20
"""Size that is added to that of each cached guide, for its outputs."""

Compiled = Callable[["Follower | CodedError | None"], None]
"""A callback. It gets None if the request was cancelled before."""
_Job = tuple[Guide, Compiled, Callable[[], bool]]

log = logging.getLogger("cog_triton.engine")


class GuideCompiler:
    """A compiler of guides for one tokenizer, in two threads: one for slow guides."""

    def __init__(self, tokenizer_file: Path) -> None:
        """Initialize. Raises errors of tokenizers and llguidance for an invalid or unsupported file."""
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.add_special_tokens([_END_MARK])
        end_mark = tokenizer.token_to_id(_END_MARK)
        assert end_mark is not None, "it was added just now"
        self._end_mark = end_mark
        self._tokenizer = LLTokenizer(tokenizer.to_str(), eos_token=self._end_mark)
        self._cache: OrderedDict[Guide, CompiledGuide] = OrderedDict()
        self._slow_masks = SlowMasks()
        self._lock = threading.Lock()
        self._lanes: list[SimpleQueue[_Job]] = [SimpleQueue() for _ in _LANES_CPU_S]
        usual_bytes = threading.stack_size(_STACK_BYTES)
        for lane in range(len(self._lanes)):
            threading.Thread(target=self._run, args=(lane,), name=f"guides-{lane}", daemon=True).start()
        threading.stack_size(usual_bytes)

    def submit(self, guide: Guide, compiled: Compiled, is_wanted: Callable[[], bool]) -> None:
        """Call ``compiled`` with the result: at once if cached, else from a thread, if it is still wanted."""
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
        """Return the result; None if the guide exceeds a limit of the lane."""
        try:
            if (follower := self._cached(guide)) is not None:
                return follower
            check_guide(guide)
            if (answer := checker.check(guide, cpu_s)) is None:
                return None
            if answer.error is not None:
                return answer.error.restore()
            made = matcher(self._tokenizer, answer.grammar)
            compiled = CompiledGuide(
                guide, answer.grammar, made, answer.num_bytes + _LEAST_BYTES, check(guide, made)
            )
            self._keep(compiled)
            return Follower(compiled, self._end_mark, self._slow_masks)
        except CodedError as error:
            return error
        # An unknown error of the library fails this guide; its request must not wait for ever.
        except Exception as exc:  # noqa: BLE001
            reason = f"{type(exc).__name__}: {first_line(str(exc))}"
            return InvalidGuide(guide_type=guide.type, reason=reason)

    def _keep(self, compiled: CompiledGuide) -> None:
        with self._lock:
            self._cache[compiled.guide] = compiled
            while sum(each.num_bytes for each in self._cache.values()) > _MAX_CACHED_BYTES:
                self._cache.popitem(last=False)

    def _cached(self, guide: Guide) -> Follower | None:
        with self._lock:
            if (cached := self._cache.get(guide)) is None:
                return None
            self._cache.move_to_end(guide)
        return Follower(cached, self._end_mark, self._slow_masks)


def open_guides(engine_dir: Path) -> GuideCompiler | None:
    """Return the engine's compiler; None, with a warning, if its tokenizer is not supported."""
    try:
        return GuideCompiler(engine_dir / "tokenizer.json")
    # tokenizers raises bare Exception, llguidance many kinds of errors.
    except Exception as exc:  # noqa: BLE001
        log.warning("guides are not supported with this tokenizer: %s", first_line(str(exc)))
        return None
