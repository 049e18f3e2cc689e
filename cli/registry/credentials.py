"""User and password that `docker login` stored for a registry."""

import base64
import binascii
import json
import os
import subprocess
from pathlib import Path
from typing import Any

_DOCKER_HUB = "https://index.docker.io/v1/"
_HELPER_TIMEOUT_S = 30.0


def find_credentials(host: str) -> tuple[str, str] | None:
    """Find user and password for ``host`` in Docker's configuration and its credential helpers.

    What can't be read counts as missing: the registry then refuses a request that needs it.
    """
    folder = os.environ.get("DOCKER_CONFIG") or Path(os.environ.get("HOME", "/")) / ".docker"
    config = _read(Path(folder) / "config.json")
    server = _DOCKER_HUB if host == "registry-1.docker.io" else host
    helper = _mapping(config.get("credHelpers")).get(server) or config.get("credsStore")
    if isinstance(helper, str) and (found := _ask_helper(helper, server)) is not None:
        return found
    auths = _mapping(config.get("auths"))
    entry = _mapping(auths.get(server) or auths.get(f"https://{server}"))
    return _decoded(entry.get("auth"))


def _read(path: Path) -> dict[str, Any]:
    try:
        return _mapping(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _ask_helper(helper: str, server: str) -> tuple[str, str] | None:
    try:
        result = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=server,
            capture_output=True,
            text=True,
            timeout=_HELPER_TIMEOUT_S,
            check=True,
        )
        answer = _mapping(json.loads(result.stdout))
        return str(answer["Username"]), str(answer["Secret"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None


def _decoded(auth: object) -> tuple[str, str] | None:
    try:
        user, colon, password = base64.b64decode(str(auth or ""), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if colon else None
