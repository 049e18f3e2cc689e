"""Fuzz targets by name, each a function of bytes that raises if a promise is broken.

``python -m tests.fuzz.guided`` runs one for long, guided by coverage; ``test_targets.py`` runs all
for a moment.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

FuzzTarget = Callable[[bytes], None]


@dataclass(frozen=True)
class Place:
    """Where a target is, and the packages whose coverage guides the fuzzer."""

    module: str
    packages: tuple[str, ...]
    examples: int = 400
    """Number of inputs in the short form."""

    def load(self, name: str) -> FuzzTarget:
        return getattr(import_module(f"tests.fuzz.{self.module}"), name)


TARGETS = {
    "compiled_config": Place("engine_documents", ("engine",)),
    "engine_directory": Place("engine_documents", ("engine", "runner"), 80),
    "engine_requests": Place("engine_socket", ("runner",)),
    "request_body": Place("bodies", ("runner",), 150),
    "slot_tensors": Place("slot_tensors", ("runner",)),
    "front_http": Place("front_connections", ("runner",)),
    "front_grpc": Place("front_connections", ("runner", "h2", "hpack")),
    "front_json": Place("front_requests", ("runner",)),
    "front_protobuf": Place("front_requests", ("runner", "tests.fuzz.front_requests")),
}
