"""The log: lines of text or, with LOG_FORMAT=json, a JSON object a line with the id of its request.

No line of ours has a prompt or an output in it. The module needs only the standard library, because the
engine server, in the engine environment's Python, uses it too.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime, timezone

VARIABLE = "LOG_FORMAT"
JSON = "json"
LOGGER = "cog_triton.runner"
_DOCUMENT = '{"timestamp": '
_TEXT_FORMAT = "%(levelname)s %(name)s: %(message)s"
_CHILDREN = ("triton: ", "engine_server: ", "openai: ")
"""Beginnings of lines of the runner's children."""
_TRITON_LINE = re.compile(r"([IWEF])\d{4} [\d:.]+ \d+ ([\w.]+:\d+)\] (.*)", re.DOTALL)
_TRITON_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "critical"}
_CODE = re.compile(r"\b(E[12]\d{3}) \w+: ")


def document(level: str, logger: str, message: str, **fields: object) -> str:
    """Return one line of JSON. A code in the message is a field as well."""
    if (code := _CODE.search(message)) is not None:
        fields = {"code": code[1], **fields}
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return json.dumps({"timestamp": now, "level": level, "logger": logger, "message": message, **fields})


class JsonFormatter(logging.Formatter):
    """A formatter by ``document``; ``extra={"fields": {...}}`` are further fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return document(record.levelname.lower(), record.name, record.getMessage(), **fields)


def set_up_logging(log_format: str | None = None) -> None:
    """Set up a process whose standard error is the log. ``log_format``: by default the environment's."""
    handler = logging.StreamHandler(sys.stderr)
    is_json = (log_format or os.environ.get(VARIABLE)) == JSON
    handler.setFormatter(JsonFormatter() if is_json else logging.Formatter(_TEXT_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_text(line: str) -> None:
    """Log a line for the operator, as it is."""
    print(line, file=sys.stderr, flush=True)


def log_in(log_format: str | None) -> Callable[[str], None]:
    """Return a function that logs a line for the operator in this LOG_FORMAT."""
    return (lambda line: log_text(as_json(line))) if log_format == JSON else log_text


def as_json(line: str) -> str:
    """Return a line of this process or of a child, whose name it begins with, as JSON if it is not yet."""
    child = next((each for each in _CHILDREN if line.startswith(each)), None)
    if child is None and line.startswith(_DOCUMENT):
        return line
    if child is None:
        level = "warning" if line.startswith("warning: ") else "error" if _CODE.search(line) else "info"
        return document(level, LOGGER, line.removeprefix("warning: "))
    text = line.removeprefix(child)
    if text.startswith(_DOCUMENT):
        return text
    if (match := _TRITON_LINE.fullmatch(text)) is not None:
        return document(_TRITON_LEVELS[match[1]], "triton", match[3].strip('"'), source=match[2])
    return document("info", child.removesuffix(": "), text)


@dataclass(frozen=True)
class GenerationSummary:
    """The end of one generation. Times are in seconds."""

    request_id: str
    trace_id: str
    finish_reason: str | None
    """Finish reason; None: the generation failed or was cancelled."""
    error: str
    """Code of the error, else its class's name. Never its sentence, which may quote the client."""
    input_token_count: int
    cached_token_count: int | None
    output_token_count: int
    duration_s: float
    time_to_first_token_s: float | None
    detokenize_s: float
    phases: tuple[tuple[str, float, float], ...]
    """Name, start and end by ``time.perf_counter`` of the phases that are known."""
    inputs: Mapping[str, str | float]
    """Bounds and sampling, for the line of a failed request."""


def log_generation(api: str, generation: GenerationSummary) -> None:
    """Log the line at the end of a request."""
    is_finished = generation.finish_reason is not None
    fields: dict[str, object] = {
        "request_id": generation.request_id,
        "api": api,
        "outcome": "failed" if generation.error else "succeeded" if is_finished else "cancelled",
        "finish_reason": generation.finish_reason,
        "input_tokens": generation.input_token_count,
        "output_tokens": generation.output_token_count,
        "duration_s": round(generation.duration_s, 6),
    }
    if generation.cached_token_count is not None:
        fields["cached_tokens"] = generation.cached_token_count
    if generation.time_to_first_token_s is not None:
        fields["time_to_first_token_s"] = round(generation.time_to_first_token_s, 6)
    if generation.error:
        fields["inputs"] = generation.inputs
    _log_end(fields, trace_id=generation.trace_id, code=generation.error)


def log_refusal(
    api: str, outcome: str, request_id: str, code: str, duration_s: float, trace_id: str = ""
) -> None:
    """Log the line of a request without a generation: refused, or its client disconnected early."""
    fields = {"request_id": request_id, "api": api, "outcome": outcome, "duration_s": round(duration_s, 6)}
    _log_end(fields, trace_id=trace_id, code=code)


def _log_end(fields: Mapping[str, object], **if_known: str) -> None:
    outcome = fields["outcome"]
    fields = {**fields, **{name: value for name, value in if_known.items() if value}}
    level = "error" if outcome == "failed" else "info"
    # NOTE: in a context of its own: Cog shows lines of the prediction's context to the client.
    Context().run(log_text, document(level, "cog_triton.request", f"request {outcome}", **fields))
