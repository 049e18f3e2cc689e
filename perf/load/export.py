"""A load test's figures for programs: one JSON document, or a CSV row per request."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from perf.load.record import Record
from perf.load.summary import Summary

_COLUMNS = (
    "scheduled_s",
    "sent_s",
    "ended_s",
    "outcome",
    "error",
    "input_tokens",
    "output_tokens",
    "latency_s",
    "first_token_s",
    "inter_token_s",
    "tokens_per_second",
)


def summary_document(configuration: Mapping[str, str], summary: Summary) -> dict[str, Any]:
    derived = ("requests_per_second", "tokens_per_second", "failure_rate", "good_per_second")
    figures = asdict(summary) | {name: getattr(summary, name) for name in derived}
    return {"configuration": dict(configuration), **figures}


def summary_json(configuration: Mapping[str, str], summary: Summary) -> str:
    return json.dumps(summary_document(configuration, summary), indent=2) + "\n"


def records_csv(records: Sequence[Record]) -> str:
    """A header and a row per request; a value that does not exist is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for record in records:
        source = {name: getattr(record.answer, name, None) for name in _COLUMNS}
        source |= {name: getattr(record, name) for name in _COLUMNS if hasattr(record, name)}
        writer.writerow([_cell(source[name]) for name in _COLUMNS])
    return text.getvalue()


def _cell(value: object) -> object:
    return f"{value:.6f}" if isinstance(value, float) else value
