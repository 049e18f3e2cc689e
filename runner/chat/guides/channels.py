"""Rules of answers in channels (gpt-oss): messages, each with a header before its text."""

from runner.chat.families.family import AnswerForm
from runner.chat.families.harmony import HarmonyCalls
from runner.chat.families.tools import Tool, ToolUse
from runner.chat.guides.calls import alternatives, arguments
from runner.chat.guides.rules import Rules, literal
from runner.engines.protocol.messages import Guide


def channel_rules(rules: Rules, answer: AnswerForm, then: Guide | None, budget: int | None) -> None:
    """Add the rules of an answer that begins after ``<|start|>assistant``, or in the reasoning."""
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
