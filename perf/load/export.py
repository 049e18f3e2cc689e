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
_TIMES = ("scheduled_s", "sent_s", "ended_s")
_RATES = ("latency_s", "first_token_s", "inter_token_s", "tokens_per_second")


def summary_json(configuration: Mapping[str, str], summary: Summary) -> str:
    figures = asdict(summary) | {name: getattr(summary, name) for name in _DERIVED}
    return json.dumps({"configuration": dict(configuration), **figures}, indent=2) + "\n"


def records_csv(records: Sequence[Record]) -> str:
    """A header and a row per request; a value that does not exist is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_TIMES, *_ANSWER, *_RATES])
    for record in records:
        answers = [getattr(record.answer, name) for name in _ANSWER]
        writer.writerow([*_figures(record, _TIMES), *answers, *_figures(record, _RATES)])
    return text.getvalue()


def _figures(record: Record, names: Sequence[str]) -> list[str]:
    values = [getattr(record, name) for name in names]
    return ["" if value is None else f"{value:.6f}" for value in values]
