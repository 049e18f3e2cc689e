"""Take secrets out of what is shown or stored: credentials in URLs, tokens in build configs.

Python 3.8 can run this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

HIDDEN = "***"

_SECRET_KEY = re.compile(
    r"secret|passw|credential|authorization|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|(^|_|-)(hf|hub|huggingface|access|auth|api|bearer|refresh)[_-]?token$|^token$",
    re.IGNORECASE,
)
_SECRET_VARIABLES = ("COG_UPLOAD_URL", "COG_WEIGHTS")
"""URLs that may hold a password or a signature."""
_SECRET_VALUE = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
_URL = re.compile(r"https?://[^\s'\"<>]+", re.IGNORECASE)


def redact_url(url: str) -> str:
    """Return ``url`` without user, password, query values and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return HIDDEN
    return f"{parts.scheme}://{host}{parts.path}" + (f"?{HIDDEN}" if parts.query else "")


def redact_text(text: str) -> str:
    """Redact every URL in ``text`` and hide every Hugging Face token."""
    return _SECRET_VALUE.sub(HIDDEN, _URL.sub(lambda match: redact_url(match[0]), text))


def without_secrets(value: object) -> object:
    """Return a build config as JSON can hold it, less its secrets.

    Entries whose key names a secret are left out, strings go through ``redact_text``, and what JSON
    does not know (dates, not-a-number, keys that are numbers) becomes its text.
    """
    if isinstance(value, dict):
        return {
            str(key): without_secrets(item) for key, item in value.items() if not names_a_secret(str(key))
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(item) for item in value]
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float) and abs(value) < float("inf"):
        return value
    return redact_text(str(value).encode("utf-8", "replace").decode())


def without_secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without this process's secrets, for processes that may run a model's code."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _SECRET_VARIABLES and not names_a_secret(name)
    }


def names_a_secret(key: str) -> bool:
    return _SECRET_KEY.search(key) is not None
