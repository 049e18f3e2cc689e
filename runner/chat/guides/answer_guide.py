"""Guides of chats: an answer in the form of its family, with calls that fit the schemas of their tools.

The guide is a grammar of llguidance (``ChatForm``): reasoning, then calls of tools, text, or what the
client's own guide allows. Markers that are tokens are written as their numbers, so that no text can be one.
"""

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from errors.requests import InvalidInput
from runner.chat.families.family import AnswerForm, CallSyntax, Span
from runner.chat.families.harmony import HarmonyCalls
from runner.chat.families.markers import markers_of
from runner.chat.families.tools import Tool, ToolUse
from runner.chat.guides.call_rules import call_rules
from runner.chat.guides.calls import Calls, alternatives, arguments
from runner.chat.guides.rules import SPACE, Rules, literal
from runner.engines.protocol.messages import Guide


def answer_guide(
    answer: AnswerForm, tokenizer: Tokenizer, then: Guide | None, thinking_budget: int | None = None
) -> Guide | None:
    """Return what the whole answer follows; None if nothing is asked for.

    ``then`` is the client's own guide, for what follows the reasoning. Calls may stand in its place if there
    are tools. ``thinking_budget`` is the maximum number of tokens of reasoning. Raises E1005 and E1105.
    """
    family, tools = answer.family, answer.tools
    if not (tools is not None and tools.is_enforced) and then is None and thinking_budget is None:
        return None
    syntax = family.calls if tools is not None else None
    reasoning, wrappers = family.reasoning, family.wrappers
    of_reasoning = (reasoning.begin, reasoning.end) if reasoning is not None else ()
    begins, of_calls = (syntax.begins, syntax.markers) if syntax is not None else ((), ())
    if family.has_channels:
        rules = Rules(markers_of(tokenizer, HarmonyCalls().markers), ())
        _channel_rules(rules, answer, then, thinking_budget)
        return rules.guide()
    around = [marker for each in wrappers for marker in (each.begin, each.end)]
    markers = markers_of(tokenizer, (*begins, *of_calls, *of_reasoning, *around))
    if (
        reasoning is not None
        and not answer.starts_in_reasoning
        and not markers.begins_with_token(reasoning.begin)
    ):
        reasoning = None  # A model without this token does not reason unless its template begins it.
    if tools is None and reasoning is None:
        return then
    rules = Rules(markers, (*begins, *of_reasoning))
    thought = ""
    if reasoning is not None:
        thought = f"{_thought(rules, reasoning, thinking_budget)} {SPACE}"
        if not answer.starts_in_reasoning:
            thought = f"({rules.marker(reasoning.begin)} {thought})?"
    rules.add("start", f"{thought} content")
    rules.add("content", _content(rules, syntax, tools, then, wrappers))
    return rules.guide()


def _thought(rules: Rules, reasoning: Span, budget: int | None) -> str:
    """Return a rule for reasoning and its end."""
    end = rules.marker(reasoning.end)
    if budget == 0:
        return end
    if rules.is_token(reasoning.end):
        return f"{rules.thought(budget)} {end}"
    if budget is not None:
        expected = "0 or left out, because the model ends its reasoning with text and not with a token"
        raise InvalidInput(name="thinking_token_budget", expected=expected, value=budget)
    return rules.add("thought[lazy]", rules.text("THOUGHT", end=reasoning.end))


def _content(
    rules: Rules,
    syntax: CallSyntax | None,
    tools: ToolUse | None,
    then: Guide | None,
    wrappers: Sequence[Span],
) -> str:
    """Return a rule for what follows the reasoning."""
    of_tokens = [each for each in wrappers if rules.is_token(each.begin)]
    guided = "" if then is None else _wrapped(rules, rules.part("the guide", then), of_tokens or wrappers)
    if syntax is None or tools is None:
        # Other wrappers are part of the text.
        return guided or _wrapped(rules, rules.text(), of_tokens)
    calls = call_rules(syntax, tools, rules)
    rules.add("calls", f"{rules.marker(calls.begin)} {calls.body(calls.begin)}")
    space = SPACE if calls.begin else ""
    required = f"{space} calls"
    if tools.is_parallel and not calls.is_list:
        required += f" ({space} calls)*"
    if tools.choice == "required":
        return required
    if guided:
        return f"{required} | {guided}"
    return _wrapped(rules, rules.add("optional", _optional(rules, syntax, calls, tools)), of_tokens)


def _wrapped(rules: Rules, content: str, wrappers: Iterable[Span]) -> str:
    """Return a rule for ``content`` with the markers around it or without."""
    wrapped = (f"{rules.marker(each.begin)} {content} ({rules.marker(each.end)})?" for each in wrappers)
    return " | ".join((content, *wrapped))


def _optional(rules: Rules, syntax: CallSyntax, calls: Calls, tools: ToolUse) -> str:
    """Return a rule for text with calls in it."""
    text = rules.text(bare=syntax.bare)
    alternatives = []
    for index, begin in enumerate(syntax.begins):
        head = f"{text} {rules.marker(begin)}"
        if not rules.is_token(begin):
            head = rules.add(f"head_{index}[lazy]", rules.text(f"HEAD_{index}", bare=syntax.bare, end=begin))
        alternatives.append(rules.add(f"marked_{index}", f"{head} {calls.body(begin)}"))
    if alternatives and tools.is_parallel:
        alternatives = [f"({' | '.join(alternatives)})* {text}"]
    else:
        alternatives.append(text)
    if syntax.bare:
        alternatives.append(calls.body(""))
    return " | ".join(alternatives)


def _channel_rules(rules: Rules, answer: AnswerForm, then: Guide | None, budget: int | None) -> None:
    """Add the rules of an answer in channels (gpt-oss): messages, each with a header before its text.

    The answer begins after ``<|start|>assistant``, or in the reasoning.
    """
    start, channel, message, constrain, end, call, _ = map(rules.marker, HarmonyCalls().markers)
    next_message = f'{end} {start} "assistant"'

    def header(name: str) -> str:
        return f"{channel} {literal(name)} {message}"

    def call_of(tools: ToolUse, tool: Tool) -> str:
        to = f" to=functions.{tool.name}"
        recipient = f'({literal(to)} {channel} "commentary" | {channel} {literal(f"commentary{to}")})'
        kind = f'(" json" | " " {constrain} "json")'
        # The marker at the end may be the request's end token, which is allowed where the guide may end.
        return f"{recipient} {kind} {message} {arguments(tool, tools, rules)} ({call})?"

    reasoning = "" if budget == 0 else rules.thought(budget)
    before = f"{reasoning} {next_message}"
    if not answer.starts_in_reasoning:
        before = f"({header('analysis')} {before})?"
    tools = answer.tools
    calls = "" if tools is None else alternatives(rules, tools, lambda tool: call_of(tools, tool))
    if tools is not None and tools.choice == "required":
        rules.add("start", f"{before} {calls}")
        return
    final = f"{header('final')} {rules.text() if then is None else rules.part('the guide', then)}"
    if calls:
        final = f"({header('commentary')} {rules.text()} {next_message})? {calls} | {final}"
    rules.add("start", f"{before} ({final})")
