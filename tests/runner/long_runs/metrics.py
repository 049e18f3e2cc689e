"""The metrics of a server, read from its port."""

from __future__ import annotations

from collections import defaultdict

import urllib3
from prometheus_client.parser import text_string_to_metric_families


def metrics(url: str) -> dict[str, float]:
    """Return values by the metric's name; those with labels are also summed up under the name alone."""
    text = urllib3.request("GET", url, timeout=10).data.decode()
    values: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name] += sample.value
            for label, value in sample.labels.items():
                values[f"{sample.name} {label}={value}"] += sample.value
    return dict(values)
