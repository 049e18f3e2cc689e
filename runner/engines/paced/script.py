"""Scripted answers of the ``paced`` engine, to rehearse clients and gateways (docs/rehearse.md).

They are off unless the runner starts with ``COG_TRITON_SCRIPT``, which only this engine kind reads: a YAML
file with a list of rules, or ``requests``. With either, a prompt can have rules of its own, as JSON, in a
block that begins with ```` ```script ````. The rule whose ``when`` stands last in the prompt answers.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import yaml
from tokenizers import Tokenizer

from errors.settings import InvalidScript
from runner.engines.protocol.messages import FinishReason, Submit, TokenId
from runner.engines.protocol.words import Words

ONLY_REQUESTS = "requests"

_BEGIN, _END = "```script\n", "\n```"
_NO_FILE = f"set COG_TRITON_SCRIPT to a file that can be read, or to {ONLY_REQUESTS!r}"
_IN_PROMPT = "The last block in the prompt"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of an answer: a pause, then the tokens of a text, then tokens."""

    pause_ms: Annotated[float, msgspec.Meta(ge=0, le=86_400_000)] = 0
    text: str = ""
    ids: list[TokenId] = []
    tokens_per_step: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Number of tokens that come at once; None: as without a script."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule: the engine generates ``answer`` for a prompt that contains ``when``."""

    answer: str | list[str | Step]
    when: str = ""


class Chunk(NamedTuple):
    """Tokens that come at once, ``pause_s`` later than by the rate."""

    pause_s: float
    tokens: list[int]


class ScriptedAnswer:
    """What a rule generates for one request, step by step."""

    def __init__(self, chunks: Sequence[Chunk], request: Submit) -> None:
        self.reason: FinishReason = "end"
        self._chunks: deque[Chunk] = deque()
        end = [] if request.end_id is None else [request.end_id]
        stop_words = Words(request.stop_words)
        output: list[int] = []
        pause_s = 0.0
        for chunk in (*chunks, Chunk(0.0, end)):
            pause_s += chunk.pause_s
            begin = len(output)
            reason: FinishReason | None = None
            for token in chunk.tokens:
                if len(output) == request.max_tokens:
                    reason = "length"
                    break
                output.append(token)
                if reason := self._reason(output, request, stop_words):
                    break
            if tokens := output[begin:]:
                self._chunks.append(Chunk(pause_s, tokens))
                pause_s = 0.0
            if reason is not None:
                self.reason = reason
                break

    @staticmethod
    def _reason(output: list[int], request: Submit, stop_words: Words) -> FinishReason | None:
        """Tell why ``output`` is over; None if it is not."""
        if output[-1] == request.end_id:
            return "end"
        return "stop" if stop_words.end(output) else None

    @property
    def pause_s(self) -> float:
        """Pause before the next tokens."""
        return self._chunks[0].pause_s if self._chunks else 0.0

    def take(self) -> list[int]:
        """Return the next tokens; none after the last."""
        return self._chunks.popleft().tokens if self._chunks else []

    def __bool__(self) -> bool:
        """Return True while tokens are left."""
        return bool(self._chunks)


class Script:
    """The rules of a runner. ``step_tokens``: how many tokens come at once where a step does not say it."""

    def __init__(self, value: str, tokenizer_file: Path, vocab_size: int, step_tokens: int) -> None:
        """Read ``value`` of the variable. Raises E1010."""
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_truncation()
        self._vocab_size = vocab_size
        self._step_tokens = step_tokens
        self._rules = [] if value == ONLY_REQUESTS else list(self._read(Path(value)))

    def answer(self, request: Submit) -> ScriptedAnswer | None:
        """Return the answer; None if no rule is for this prompt. Raises E1010 for wrong rules in it."""
        prompt: str = self._tokenizer.decode(request.input_ids, skip_special_tokens=False)
        before, *parts = prompt.split(_BEGIN)
        blocks = [part.partition(_END) for part in parts]
        prompt = before + "".join(rest for _, _, rest in blocks)
        if blocks and (found := _last(prompt, rules := _parse(blocks[-1][0]))) is not None:
            return ScriptedAnswer(self._chunks(rules[found], _IN_PROMPT), request)
        found = _last(prompt, [rule for rule, _ in self._rules])
        return None if found is None else ScriptedAnswer(self._rules[found][1], request)

    def _read(self, path: Path) -> Iterator[tuple[Rule, list[Chunk]]]:
        where = str(path)
        try:
            root = yaml.compose(path.read_text(), yaml.SafeLoader)
            if not isinstance(root, yaml.SequenceNode):
                raise ValueError("a list is expected")
            constructor = yaml.SafeLoader("")
            for node in root.value:
                where = f"{path}, line {node.start_mark.line + 1},"
                rule = msgspec.convert(constructor.construct_document(node), Rule)
                yield rule, self._chunks(rule, where)
        except yaml.MarkedYAMLError as exc:
            line = f", line {exc.problem_mark.line + 1}," if exc.problem_mark is not None else ""
            raise InvalidScript(where=f"{path}{line}", reason=exc.problem) from exc
        except OSError as exc:
            reason = exc.strerror or type(exc).__name__
            raise InvalidScript(where=where, reason=reason, remedy=_NO_FILE) from exc
        except (ValueError, yaml.YAMLError) as exc:
            raise InvalidScript(where=where, reason=str(exc)) from exc

    def _chunks(self, rule: Rule, where: str) -> list[Chunk]:
        chunks = []
        for part in [rule.answer] if isinstance(rule.answer, str) else rule.answer:
            step = Step(text=part) if isinstance(part, str) else part
            ids = [*self._tokenizer.encode(step.text, add_special_tokens=False).ids, *step.ids]
            if max(ids, default=0) >= self._vocab_size:
                reason = f"token {max(ids)} is not in the vocabulary of {self._vocab_size} tokens"
                raise InvalidScript(where=where, reason=reason)
            size = step.tokens_per_step or self._step_tokens
            chunks.append(Chunk(step.pause_ms / 1000, ids[:size]))
            chunks += [Chunk(0.0, ids[at : at + size]) for at in range(size, len(ids), size)]
        return chunks


def _last(prompt: str, rules: Sequence[Rule]) -> int | None:
    """Return the index of the rule whose ``when`` ends last in the prompt; None if there is none."""
    ends = {
        index: prompt.rfind(rule.when) + len(rule.when) if rule.when else 0
        for index, rule in enumerate(rules)
        if rule.when in prompt
    }
    return max(ends, key=ends.__getitem__, default=None)


def _parse(block: str) -> list[Rule]:
    try:
        return msgspec.json.decode(block, type=list[Rule])
    except ValueError as exc:
        raise InvalidScript(where=_IN_PROMPT, reason=str(exc)) from exc
