"""A load test's figures for programs: one JSON document, or a CSV row per request."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from perf.load.record import Record
from perf.load.summary import Summary

_DERIVED = ("requests_per_second", "tokens_per_second", "failure_rate", "good_per_second")
_ANSWER = ("outcome", "error", "input_tokens", "output_tokens")
_RECORD = (
    *("scheduled_s", "sent_s", "ended_s"),
    *("latency_s", "first_token_s", "inter_token_s", "tokens_per_second"),
)


def summary_json(configuration: Mapping[str, str], summary: Summary) -> str:
    figures = asdict(summary) | {name: getattr(summary, name) for name in _DERIVED}
    return json.dumps({"configuration": dict(configuration), **figures}, indent=2) + "\n"


def records_csv(records: Sequence[Record]) -> str:
    """A header and a row per request; a value that does not exist is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_RECORD, *_ANSWER])
    for record in records:
        values = [getattr(record, name) for name in _RECORD]
        answers = [getattr(record.answer, name) for name in _ANSWER]
        writer.writerow([*("" if value is None else f"{value:.6f}" for value in values), *answers])
    return text.getvalue()
