"""The message from the runner to a new Dynamo worker: one JSON document on standard input."""

from pathlib import Path

import msgspec


class DynamoStart(msgspec.Struct, frozen=True):
    """The message. Lengths are in tokens."""

    engine_socket: Path
    engine_kind: str
    engine_dir: Path
    """Folder with the tokenizer and the chat template, which Dynamo's front ends read."""
    has_chat: bool
    """True if there is a chat template."""
    chat_template: Path | None
    """File of another chat template; None: the tokenizer's own."""
    names: tuple[str, ...]
    """Names of the model. The first one is registered, the others are its aliases."""
    adapters: tuple[str, ...]
    """Names of the LoRA adapters that the engine carries."""
    end_ids: tuple[int, ...]
    """Tokens that end a text. The first one is the engine's end id, the others are stop words."""
    pad_id: int
    max_sequence_length: int
    max_input_length: int
    sampling_defaults: dict[str, float]
    """Sampling parameters of requests that do not set them."""
    lowest_priority: int
    """Lowest priority that a request may ask for: see ``MIN_PRIORITY``."""
    timeout_s: float
    """Longest time that a request may be without an answer."""
    discovery: str
    """Dynamo's name of the way in which its processes find each other."""
    host: str
    """IPv4 address where the worker listens."""
    kv_events: tuple[str, str] | None = None
    """Endpoint and topic of the engine's KV events, if it listens there."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=str)

    @classmethod
    def decode(cls, data: bytes) -> "DynamoStart":
        return msgspec.json.decode(data, type=cls, dec_hook=lambda kind, value: kind(value))
