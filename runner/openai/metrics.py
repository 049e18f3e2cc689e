"""GET /metrics: Triton's metrics, in which the slot's are, on this port as well."""

from __future__ import annotations

import urllib.request

from errors.triton_system import TritonUnavailable
from runner.settings import Settings
from runner.triton_ports import local_url

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT_S = 2.0


def metrics_text(settings: Settings) -> str:
    """Asks and waits. Raises E2105."""
    url = f"{local_url(settings.triton_host, settings.triton_metrics_port)}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - http of our own
            text: str = response.read().decode()
    except OSError as exc:
        raise TritonUnavailable(reason=exc) from exc
    return text
