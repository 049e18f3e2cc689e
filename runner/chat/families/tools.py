"""Tools that a model may call, and how."""

from typing import Any, Literal

import msgspec

ToolChoice = Literal["auto", "required"]
"""Choice of calls. ``required``: the answer is one or more; with one tool this is also a named tool."""


class Tool(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments, which are an object."""
    is_strict: bool = False
    """True if arguments always match the schema, also where the model chooses whether to call it."""


class ToolUse(msgspec.Struct, frozen=True):
    tools: tuple[Tool, ...]
    choice: ToolChoice = "auto"
    is_parallel: bool = True
    """True if one answer may have several calls."""

    def is_guided(self, tool: Tool) -> bool:
        """Return True if a guide enforces the tool's schema."""
        return self.choice == "required" or tool.is_strict

    @property
    def is_enforced(self) -> bool:
        """True if a guide has to enforce calls or their schemas."""
        return any(self.is_guided(tool) for tool in self.tools)
