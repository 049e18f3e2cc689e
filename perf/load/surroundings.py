"""Conditions of figures besides the load: when and on which machine they were taken, and on what server."""

import json
from datetime import datetime, timezone

from engine.machine.description import machine
from engine.machine.gpu import visible_gpus
from perf.load.http import HttpClient, Request, RequestFailed
from perf.load.options import COG, MOCK, OPENAI, TRITON

_TIMEOUT_S = 10.0
_PATHS = {COG: "/health-check", MOCK: "/health-check", TRITON: "/v2", OPENAI: "/version"}
"""Paths at which a server may tell its version: Cog, Triton, vLLM."""


async def surroundings(target: str, url: str) -> dict[str, str]:
    """Describe them for ``target``, the options' one; without a version if the server tells none."""
    gpus = [gpu.name or f"GPU of SM {gpu.sm}" for gpu in visible_gpus()]
    lines = {
        "Date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "Load generator": ", ".join([machine(), *gpus]),
    }
    versions = await _versions(f"{url}{_PATHS[target]}") if target in _PATHS else ""
    return lines | ({"Server": versions} if versions else {})


async def _versions(url: str) -> str:
    http = HttpClient(_TIMEOUT_S)
    try:
        document = json.loads((await http.send(Request("GET", url, {}))).body)
        version = document["version"]
    except (RequestFailed, ValueError, KeyError, TypeError):
        return ""
    finally:
        http.close()
    if isinstance(version, dict):
        return ", ".join(f"{name} {each}" for name, each in version.items() if each)
    return f"{document.get('name', 'version')} {version}"
