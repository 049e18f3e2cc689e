"""Parts of an answer. Concatenated by kind, they are the same for every split of its tokens into steps."""

import msgspec


class Content(msgspec.Struct, frozen=True, gc=False):
    """Text for the user."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """Text that the model writes for itself."""

    text: str


class CallStart(msgspec.Struct, frozen=True, gc=False):
    """Start of a tool call, which ends the one before it. ``CallArguments`` follow."""

    name: str
    id: str = ""
    """Id, where the family writes one; else the API makes one."""


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """Further piece of the call's arguments: JSON, complete with the last piece."""

    text: str


Part = Content | Reasoning | CallStart | CallArguments
