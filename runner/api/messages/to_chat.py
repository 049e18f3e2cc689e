"""Conversion of the body of POST /v1/messages into a body of chat completions."""

from collections.abc import Iterator
from typing import Any

from errors.requests import InvalidInput
from runner.api.error_response import Fields
from runner.api.messages import bodies
from runner.api.openai.bodies import ChatBody, Object
from runner.api.openai.to_chat import call_of, format_by, function_named, joined, make_chat_body
from runner.chat.turns import combined

_NAMES = (
    (r"^response_format.*", "output_config.format"),
    (r"^stop\b", "stop_sequences"),
    (r"^messages\[\d+\]\.content\[\d+\]", "messages.content"),
    (r"^messages\[\d+\]\.tool_call_id", "messages.tool_use_id"),
    (r"^thinking_token_budget", "thinking.budget_tokens"),
    (r"^reasoning_effort", "output_config.effort"),
    (r"^(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"^(tools\[\d+\]|tool_choice)\.function", r"\1"),
)
"""Fields of the chat's body by their names here, as regular expressions."""
_OWN_TOOLS_ONLY = "custom, because this server runs no tools itself and has none of Anthropic's"
_CHOICES = {bodies.AnyTool: "required", bodies.NoTool: "none"}


def fields_of(body: bodies.CountTokensBody) -> Fields:
    """Return the fields' names for errors."""
    if body.output_config is not None and body.output_config.format is not None:
        return Fields("messages", "output_config.format", _NAMES)
    return Fields("messages", "tools" if body.tools else "thinking", _NAMES)


def chat_body(body: bodies.CountTokensBody, *, limits_thinking: bool) -> ChatBody:
    """Convert the body. Raises E1005 with the field.

    ``limits_thinking``: True if the engine can limit the tokens of reasoning. Otherwise Anthropic's budget,
    which is only a target, is left out.
    """
    if not body.messages:
        raise InvalidInput(name="messages", expected="a list of at least one message", value=[])
    messages = combined(_messages(body))
    continues = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    choice, thinking, output = body.tool_choice, body.thinking, body.output_config or bodies.OutputOptions()
    return make_chat_body(
        body,
        messages=messages,
        continue_final_message=continues or None,
        add_generation_prompt=False if continues else None,
        tools=None if body.tools is None else list(_tools(body.tools)),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        reasoning_effort="none" if isinstance(thinking, bodies.ThinkingDisabled) else output.effort,
        thinking_token_budget=getattr(thinking, "budget_tokens", None) if limits_thinking else None,
        chat_template_kwargs=body.chat_template_kwargs,
        response_format=format_by(output.format.schema) if output.format is not None else None,
        # A body whose tokens are counted has no limits.
        max_tokens=getattr(body, "max_tokens", None),
        stop=getattr(body, "stop_sequences", None),
    )


def _tools(tools: list[bodies.Tool]) -> Iterator[Object]:
    for at, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            raise InvalidInput(name=f"tools[{at}].type", expected=_OWN_TOOLS_ONLY, value=tool.type)
        if tool.input_schema is None:  # Anthropic's other tools have none.
            raise InvalidInput.missing(f"tools[{at}].input_schema")
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": tool.strict,
        }
        yield {"type": "function", "function": function}


def _tool_choice(choice: bodies.ToolChoice | None) -> str | Object | None:
    if isinstance(choice, bodies.NamedTool):
        return function_named(choice.name)
    return None if choice is None else _CHOICES.get(type(choice))


def _messages(body: bodies.CountTokensBody) -> Iterator[dict[str, Any]]:
    if body.system:
        yield {"role": "system", "content": joined(body.system)}
    for message in body.messages:
        match message:
            case bodies.UserMessage(content):
                yield from _of_user(content)
            case bodies.AssistantMessage(content):
                yield _of_assistant(content)
            case bodies.SystemMessage(content):
                yield {"role": "system", "content": joined(content)}


def _of_user(content: Any) -> Iterator[dict[str, Any]]:
    """Yield a user's messages: each result of a tool alone, and the parts between them together."""
    parts: list[bodies.TextBlock | bodies.ImageBlock] = []
    if isinstance(content, str):
        yield {"role": "user", "content": content}
        return
    for block in content:
        if not isinstance(block, bodies.ToolResultBlock):
            parts.append(block)
            continue
        if parts:
            yield {"role": "user", "content": joined(parts)}
            parts = []
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": joined(block.content)}
    if parts or not content:
        yield {"role": "user", "content": joined(parts)}


def _of_assistant(content: Any) -> dict[str, Any]:
    if content is None or isinstance(content, str):
        return {"role": "assistant", "content": content or ""}
    message: dict[str, Any] = {"role": "assistant"}
    texts = [block for block in content if isinstance(block, bodies.TextBlock)]
    calls = [
        call_of(block.id, block.name, block.input)
        for block in content
        if isinstance(block, bodies.ToolUseBlock)
    ]
    if thoughts := [block.thinking for block in content if isinstance(block, bodies.ThinkingBlock)]:
        message["reasoning_content"] = "\n".join(thoughts)
    if texts or not calls:
        message["content"] = joined(texts)
    if calls:
        message["tool_calls"] = calls
    return message
