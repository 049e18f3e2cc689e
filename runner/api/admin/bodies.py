"""The bodies and answers of the endpoints for administrators, in vLLM's form."""

from typing import Annotated

import msgspec
from msgspec import Meta

from runner.api.openai.bodies import Body
from runner.engines.protocol.checks import MAX_LORA_NAME

# NOTE: ``$`` alone also matches before a line break at the end.
_NAME = r"^[\w.:@+-]+(/[\w.:@+-]+)*$(?!\n)"
_Name = Annotated[str, Meta(min_length=1, max_length=MAX_LORA_NAME, pattern=_NAME)]


class LoadAdapterBody(Body, kw_only=True):
    """POST /v1/load_lora_adapter"""

    lora_name: Annotated[_Name, Meta(description="Name for the field model of requests.")]
    lora_path: Annotated[str, Meta(min_length=1, description="Folder inside one of LORA_DIRS.")]
    base_model_name: Annotated[str, Meta(description="No effect.")] | None = None
    load_inplace: Annotated[bool, Meta(description="Replace the adapter of that name.")] | None = None
    digest: (
        Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)", description="Digest that it must have.")] | None
    ) = None


class UnloadAdapterBody(Body, kw_only=True):
    """POST /v1/unload_lora_adapter"""

    lora_name: _Name
    lora_int_id: Annotated[int, Meta(description="No effect.")] | None = None


class Sleeping(msgspec.Struct):
    is_sleeping: bool


class SleepState(msgspec.Struct, omit_defaults=True):
    status: str
    level: int | None = None


class WakeState(msgspec.Struct):
    status: str
    tags: list[str] | None
