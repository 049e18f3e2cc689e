"""Guides (schemas, regular expressions, grammars): compiles them, and follows one per output.

llguidance computes which tokens may come next from the guide and the tokenizer. Its limits on the cost of a
guide (time by a count of steps, memory by a count of states) turn a hostile guide into an error. Guides are
compiled outside the engine's loop and cached.
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
from runner.engines.protocol.checks import check_guide
from runner.engines.protocol.messages import ANY_JSON, Guide

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_END_MARK = "<|cog-triton end of guide|>"
"""Our own token after the model's vocabulary: llguidance allows it where the output may end."""
_STACK_BYTES = 512 << 20
"""Address space of the compiling thread's stack.

NOTE: llguidance follows the rules of a grammar by recursion: a chain of thousands would overflow a default
stack and end the process."""
_MAX_LEXER_STATES = 50_000
"""Each takes 1 to 2 kB."""
_MAX_CACHED_GUIDES = 64
_WHITESPACE = r"\n?[ ]{0,16}"
"""Between the parts of JSON. Without a limit, small models generate spaces until ``max_tokens``."""

Compiled = Callable[["Follower | CodedError"], None]
Mask = npt.NDArray[np.bool_]

log = logging.getLogger("cog_triton.engine")


class Follower:
    """The state of one output in its guide. Used by one thread at a time."""

    def __init__(self, guide: Guide, matcher: LLMatcher, end_mark: int) -> None:
        self._guide = guide
        self._matcher = matcher
        self._end_mark = end_mark
        self._num_tokens = 0

    @property
    def is_complete(self) -> bool:
        """Whether the output can only end here."""
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
        """Add the next token of the output. Raises GuideFailed."""
        self._num_tokens += 1
        if not self._matcher.consume_token(token):
            raise self.failed(first_line(self._matcher.get_error()))

    def failed(self, reason: str) -> GuideFailed:
        return GuideFailed(guide_type=self._guide.type, tokens=self._num_tokens, reason=reason)


class GuideCompiler:
    """Compiles guides for one tokenizer, one at a time in a thread."""

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
        self._limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        self._cache: OrderedDict[Guide, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[Guide, Compiled]] = SimpleQueue()
        usual_bytes = threading.stack_size(_STACK_BYTES)
        threading.Thread(target=self._run, name="guides", daemon=True).start()
        threading.stack_size(usual_bytes)

    def submit(self, guide: Guide, compiled: Compiled) -> None:
        """Call ``compiled`` with the result: at once if the guide is cached, else from the thread."""
        if (follower := self._cached(guide)) is not None:
            compiled(follower)
        else:
            self._queue.put((guide, compiled))

    def _run(self) -> None:
        while True:
            guide, compiled = self._queue.get()
            compiled(self._result(guide))

    def _result(self, guide: Guide) -> Follower | CodedError:
        try:
            if (follower := self._cached(guide)) is not None:
                return follower
            matcher = self._compile(guide)
            with self._lock:
                self._cache[guide] = matcher
                if len(self._cache) > _MAX_CACHED_GUIDES:
                    self._cache.popitem(last=False)
            return Follower(guide, matcher.deep_copy(), self._end_mark)
        except CodedError as error:
            return error
        # An unknown error of the library fails this guide; its request must not wait for ever.
        except Exception as exc:  # noqa: BLE001
            reason = f"{type(exc).__name__}: {first_line(str(exc))}"
            return InvalidGuide(guide_type=guide.type, reason=reason)

    def _cached(self, guide: Guide) -> Follower | None:
        with self._lock:
            if (matcher := self._cache.get(guide)) is None:
                return None
            self._cache.move_to_end(guide)
        return Follower(guide, matcher.deep_copy(), self._end_mark)

    def _compile(self, guide: Guide) -> LLMatcher:
        check_guide(guide)
        if guide.type != "json" and not guide.text.strip():
            raise InvalidGuide(guide_type=guide.type, reason="it is empty")
        match guide.type:
            case "json":
                return self._compile_schema(guide, ANY_JSON)
            case "json_schema":
                return self._compile_schema(guide, guide.text)
            case "regex":
                _checked(guide, self._matcher(LLMatcher.grammar_from_regex(guide.text)), regex_reason)
                # The regex is valid. Compile it again with \d for the ten ASCII digits.
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
            """The error of a schema, or an empty string."""
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
    # NOTE: override options for llguidance in the schema ("x-guidance"), which could produce invalid JSON.
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


def _checked(guide: Guide, matcher: LLMatcher, reason: Callable[[str], str]) -> LLMatcher:
    """``matcher``, if it is valid and allows a first token. Raises InvalidGuide."""
    if error := matcher.get_error():
        raise InvalidGuide(guide_type=guide.type, reason=reason(error))
    first = matcher.deep_copy()
    first.compute_bitmask()
    if first.is_error():
        cause = f"no output matches it ({first_line(first.get_error())})"
        raise InvalidGuide(guide_type=guide.type, reason=cause)
    return matcher


def open_guides(engine_dir: Path) -> GuideCompiler | None:
    """The engine's compiler; None, with a warning, if its tokenizer is not supported."""
    try:
        return GuideCompiler(engine_dir / "tokenizer.json")
    # tokenizers raises bare Exception, llguidance many kinds of errors.
    except Exception as exc:  # noqa: BLE001
        log.warning("guides are not supported with this tokenizer: %s", first_line(str(exc)))
        return None
