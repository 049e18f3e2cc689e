"""Families whose calls are tags, and the values in them text."""

from runner.chat.families.family import THINK, Family, Span
from runner.chat.families.syntax.brace_calls import BraceCalls
from runner.chat.families.syntax.channel_calls import ChannelCalls, channel_begin, channel_end
from runner.chat.families.syntax.element_calls import ElementCalls
from runner.chat.families.syntax.invoke_calls import InvokeCalls

MINIMAX_M2 = Family("minimax-m2", InvokeCalls("minimax:tool_call"), THINK)
MINIMAX_M3 = Family("minimax-m3", ElementCalls(), Span("<mm:think>", "</mm:think>"))
DOTS = Family("dots", InvokeCalls("dots_function_call"), THINK)
MINICPM_5 = Family(
    "minicpm-5", InvokeCalls("", call_tag="function", parameter_tag="param", has_cdata=True), THINK
)
GEMMA_4 = Family(
    name="gemma-4",
    calls=BraceCalls("<|tool_call>", "<tool_call|>", '<|"|>', tells_types=True),
    reasoning=Span("<|channel>thought", "<channel|>"),
)
FUNCTION_GEMMA = Family(
    name="functiongemma",
    calls=BraceCalls("<start_function_call>", "<end_function_call>", "<escape>", tells_types=False),
)
KIMI_K3 = Family(
    name="kimi-k3",
    calls=ChannelCalls(),
    reasoning=Span(channel_begin("think"), channel_end("think")),
    wrappers=(Span(channel_begin("response"), channel_end("response")), Span("", channel_end("message"))),
)
