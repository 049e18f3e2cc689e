"""Cog's log lines, and ours that Cog wraps into its own, as flat JSON objects, with LOG_FORMAT=json.

The output of predictions is left out: it contains prompts, and callers get it as the prediction's ``logs``.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runner.observability.logs import document

_MOST_READ_BYTES = 1 << 16
_DRAIN_S = 2.0
_OURS = '{"timestamp": '


def flat(line: str) -> str | None:
    """Rewrite one of Cog's lines. Return None for what a prediction printed."""
    try:
        entry = json.loads(line)
        fields: dict[str, Any] = dict(entry["fields"])
        message = str(fields.pop("message"))
    except (ValueError, KeyError, TypeError):
        return document("info", "cog", line)
    is_printed = fields.pop("source", None) is not None
    if message.startswith(_OURS):
        return message
    if "prediction_id" in fields:
        if is_printed:
            return None
        fields["request_id"] = fields.pop("prediction_id")
    head = {"timestamp": entry["timestamp"], "level": entry["level"].lower(), "logger": entry["target"]}
    return json.dumps({**head, "message": message, **fields})


@contextmanager
def flat_log() -> Iterator[None]:
    """Pass all that this process and its children print through ``flat``, to standard error, in the block."""
    target = os.dup(2)
    source, end = os.pipe()
    os.dup2(end, 1)
    os.dup2(end, 2)
    os.close(end)
    thread = threading.Thread(target=_forward, args=(source, target), name="flat-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.dup2(target, 1)
        os.dup2(target, 2)
        thread.join(_DRAIN_S)  # A child that lives on holds its end open.


def _forward(source: int, target: int) -> None:
    rest = b""
    while data := os.read(source, _MOST_READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        _write(target, lines)
    _write(target, [rest])


def _write(target: int, lines: list[bytes]) -> None:
    texts = [flat(line.decode(errors="replace")) for line in lines if line.strip()]
    data = "".join(f"{text}\n" for text in texts if text is not None).encode()
    while data:
        data = data[os.write(target, data) :]
