"""What an orchestrator's probes ask: ``python -m runner.probe started|ready|alive``.

Cog answers ``/health-check`` with HTTP 200 whatever its status, and Triton's ``/v2/health/ready`` stays 200
while the engine behind it is dead, so neither is a probe by itself. Exit status 0 is yes, 1 is no; the status
is printed. Standard library only: it is started every few seconds.
"""

from __future__ import annotations

import http.client
import json
import os
import sys

_TIMEOUT_S = 4.0
"""Cog asks the engine slot, which has 2 s to answer."""
_NO_ANSWER = "NO_ANSWER"

QUESTIONS = {
    # Not READY alone: a runner whose setup failed will not start any more, and that is for `alive` to say.
    "started": {"READY", "BUSY", "UNHEALTHY", "SETUP_FAILED", "DEFUNCT"},
    # BUSY refuses requests beyond its concurrency, but serves as many as it can.
    "ready": {"READY", "BUSY"},
    # UNHEALTHY mends itself: the runner starts Triton, and the slot its engine, again.
    "alive": {"STARTING", "READY", "BUSY", "UNHEALTHY"},
}
"""The statuses that answer a question with yes."""


def status(port: int) -> str:
    """Cog's status, or NO_ANSWER."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health-check")
        return str(json.loads(connection.getresponse().read())["status"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return _NO_ANSWER
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in QUESTIONS:
        print(f"usage: python -m runner.probe {'|'.join(QUESTIONS)}", file=sys.stderr)
        return 2
    found = status(int(os.environ.get("PORT", "5000")))
    print(found)
    return 0 if found in QUESTIONS[arguments[0]] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
