"""The environment of a process that may run a model's own code: without this process's secrets."""

from __future__ import annotations

from collections.abc import Mapping

from engine.redact import names_a_secret

_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "COG_UPLOAD_URL", "COG_WEIGHTS")
"""Tokens, and URLs that may hold a password or a signature."""


def without_secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without the variables that are secrets, or whose name says so."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _SECRETS and not names_a_secret(name)
    }
