"""Guides: what an output must follow, compiled, and where each output stands in its own.

llguidance does the work: it computes which tokens may come next from the guide and the tokenizer, with
limits of its own on what a guide may cost (time by a count of steps, memory by a count of states), so that a
hostile one ends in an error. Compiling is done off the engine's loop; what was compiled is kept.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from, regex_to_lark
from tokenizers import Tokenizer

from errors.coded_error import CodedError
from errors.requests import GuideFailed, InvalidGuide
from runner.engines.guides.errors import first_line, regex_reason, schema_reason
from runner.engines.protocol.messages import ANY_JSON, Guide, GuideType

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_END_MARK = "<|cog-triton end of guide|>"
"""A token of ours, beyond the model's: llguidance allows it where the output may end."""
_MAX_BYTES: dict[GuideType, int] = {"json_schema": 1 << 16, "regex": 1 << 14, "ebnf_grammar": 1 << 14}
"""Of a guide's text. The worst of this size that were found took 3 s to compile, and 400 MB meanwhile."""
_STACK_BYTES = 512 << 20
"""Of the compiling thread: address space, not memory.

NOTE: llguidance follows rules of a grammar by recursion; a chain of thousands overflows a usual stack, which
ends the process."""
_MAX_LEXER_STATES = 50_000
"""About 1 to 2 kB each."""
_KEPT_GUIDES = 64
_WHITESPACE = r"\n?[ ]{0,16}"
"""Between the parts of JSON. Without a bound, small models write spaces until they are cut."""

Compiled = Callable[["Follower | CodedError"], None]
Mask = npt.NDArray[np.bool_]

log = logging.getLogger("cog_triton.engine")


class Follower:
    """Where one output stands in its guide. Used by one thread at a time."""

    def __init__(self, guide: Guide, matcher: LLMatcher, end_mark: int) -> None:
        self._guide = guide
        self._matcher = matcher
        self._end_mark = end_mark
        self._num_tokens = 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allowed(self, vocab_size: int) -> tuple[Mask, bool]:
        """Which tokens may come next, [vocab_size], and whether the output may end. Raises GuideFailed."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise self.failed(first_line(self._matcher.get_error()))
        bits = np.unpackbits(packed, bitorder="little")
        allowed = np.zeros(vocab_size, dtype=np.bool_)
        known = min(vocab_size, self._end_mark)
        allowed[:known] = bits[:known]
        return allowed, bool(bits[self._end_mark])

    def take(self, token: int) -> None:
        """The next token of the output. Raises GuideFailed."""
        self._num_tokens += 1
        if not self._matcher.consume_token(token):
            raise self.failed(first_line(self._matcher.get_error()))

    def failed(self, reason: str) -> GuideFailed:
        return GuideFailed(guide_type=self._guide.type, tokens=self._num_tokens, reason=reason)


class GuideCompiler:
    """Compiles guides for one tokenizer, one after the other in a thread of its own."""

    def __init__(self, tokenizer_file: Path) -> None:
        """Raises what a tokenizer raises that can't be read or that llguidance does not know."""
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.add_special_tokens([_END_MARK])
        self._end_mark = _end_mark_id(tokenizer)
        self._tokenizer = LLTokenizer(tokenizer.to_str(), eos_token=self._end_mark)
        self._limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        self._kept: OrderedDict[Guide, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._asked: SimpleQueue[tuple[Guide, Compiled]] = SimpleQueue()
        usual_bytes = threading.stack_size(_STACK_BYTES)
        threading.Thread(target=self._run, name="guides", daemon=True).start()
        threading.stack_size(usual_bytes)

    def submit(self, guide: Guide, compiled: Compiled) -> None:
        """Call ``compiled`` with the outcome: at once if the guide is kept, else from the thread."""
        if (follower := self._find(guide)) is not None:
            compiled(follower)
        else:
            self._asked.put((guide, compiled))

    def _run(self) -> None:
        while True:
            self._answer(*self._asked.get())

    def _follow(self, guide: Guide) -> Follower:
        """A follower at the guide's beginning. Raises InvalidGuide."""
        follower = self._find(guide)
        if follower is None:
            matcher = self._compile(guide)
            with self._lock:
                self._kept[guide] = matcher
                if len(self._kept) > _KEPT_GUIDES:
                    self._kept.popitem(last=False)
            follower = self._follower(guide, matcher)
        return follower

    def _answer(self, guide: Guide, compiled: Compiled) -> None:
        try:
            answer: Follower | CodedError = self._follow(guide)
        except CodedError as error:
            answer = error
        # The library's own: a reason to refuse this guide, never one to leave its request waiting.
        except Exception as exc:  # noqa: BLE001
            answer = InvalidGuide(
                guide_type=guide.type, reason=f"{type(exc).__name__}: {first_line(str(exc))}"
            )
        compiled(answer)

    def _find(self, guide: Guide) -> Follower | None:
        with self._lock:
            matcher = self._kept.get(guide)
            if matcher is None:
                return None
            self._kept.move_to_end(guide)
        return self._follower(guide, matcher)

    def _follower(self, guide: Guide, matcher: LLMatcher) -> Follower:
        return Follower(guide, matcher.deep_copy(), self._end_mark)

    def _compile(self, guide: Guide) -> LLMatcher:
        size, most = len(guide.text.encode()), _MAX_BYTES.get(guide.type, 0)
        if size > most:
            reason = f"it has {size} bytes, and {most} are the most"
            raise InvalidGuide(guide_type=guide.type, reason=reason)
        if guide.type != "json" and not guide.text.strip():
            raise InvalidGuide(guide_type=guide.type, reason="it is empty")
        match guide.type:
            case "json":
                return self._compile_schema(guide, ANY_JSON)
            case "json_schema":
                return self._compile_schema(guide, guide.text)
            case "regex":
                _checked(guide, self._matcher(LLMatcher.grammar_from_regex(guide.text)), regex_reason)
                # Now that it is known to be right: with \d for the ten digits that JSON and people mean.
                lark = f"start: /{regex_to_lark(guide.text, 'd')}/"
                return _checked(guide, self._matcher(LLMatcher.grammar_from_lark(lark)), first_line)
            case "ebnf_grammar":
                return _checked(guide, self._compile_grammar(guide), first_line)

    def _compile_schema(self, guide: Guide, text: str) -> LLMatcher:
        try:
            schema = json.loads(text)
        except ValueError as exc:
            raise InvalidGuide(guide_type=guide.type, reason=f"it is not JSON: {exc}") from exc
        except RecursionError as exc:
            raise InvalidGuide(guide_type=guide.type, reason="it is nested too deeply") from exc

        if not isinstance(schema, dict):
            raise InvalidGuide(guide_type=guide.type, reason="a schema must be a JSON object")

        def fault(part: Mapping[str, object]) -> str:
            """What is wrong with a schema; empty if nothing is."""
            error: str = self._matcher(_schema_grammar(json.dumps(part))).get_error()
            return error

        return _checked(
            guide, self._matcher(_schema_grammar(text)), lambda error: schema_reason(schema, error, fault)
        )

    def _compile_grammar(self, guide: Guide) -> LLMatcher:
        try:
            return self._matcher(grammar_from("ebnf", guide.text))
        except ValueError as exc:
            reason = first_line(str(exc).removeprefix("Failed to convert the grammar from GBNF to Lark: "))
            raise InvalidGuide(guide_type=guide.type, reason=reason) from exc

    def _matcher(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)


def _schema_grammar(schema: str) -> str:
    # NOTE: a schema may hold options for llguidance ("x-guidance") that make something else than JSON.
    overrides: JsonCompileOptions = {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": True,
        "whitespace_pattern": _WHITESPACE,
        "coerce_one_of": False,
        "lenient": False,
    }
    grammar: str = LLMatcher.grammar_from_json_schema(schema, overrides=overrides)
    return grammar


def _end_mark_id(tokenizer: Tokenizer) -> int:
    end_mark = tokenizer.token_to_id(_END_MARK)
    assert end_mark is not None, "it was added just now"
    return end_mark


def _checked(guide: Guide, matcher: LLMatcher, reason: Callable[[str], str]) -> LLMatcher:
    """``matcher``, if it is sound and there is a first token for it. Raises InvalidGuide."""
    if error := matcher.get_error():
        raise InvalidGuide(guide_type=guide.type, reason=reason(error))
    first = matcher.deep_copy()
    first.compute_bitmask()
    if first.is_error():
        cause = f"nothing can be written by it ({first_line(first.get_error())})"
        raise InvalidGuide(guide_type=guide.type, reason=cause)
    return matcher


def open_guides(engine_dir: Path) -> GuideCompiler | None:
    """The engine's compiler; None, and a warning, where its tokenizer does not allow one."""
    try:
        return GuideCompiler(engine_dir / "tokenizer.json")
    # tokenizers raises bare Exception, llguidance ValueError and whatever its many decoders raise.
    except Exception as exc:  # noqa: BLE001
        log.warning(
            "outputs can't be guided without a tokenizer that is understood: %s", first_line(str(exc))
        )
        return None
