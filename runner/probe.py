"""The command of an orchestrator's probes: ``python -m runner.probe started|ready|alive``.

Cog answers ``/health-check`` with HTTP 200 whatever its status, and Triton's ``/v2/health/ready`` does not
answer during the start, so neither is a probe by itself. Exit status 0 is yes, 1 is no, and the status is
printed. Standard library only, as it is started every few seconds (docs/decisions.md).
"""

import http.client
import json
import os
import sys

_TIMEOUT_S = 4.0
"""Cog answers at once, unless its worker hangs."""
_NO_ANSWER = "NO_ANSWER"

QUESTIONS = {
    # These are also the statuses of a failed setup: no start is under way then, and `alive` says no.
    "started": {"READY", "BUSY", "UNHEALTHY", "SETUP_FAILED", "DEFUNCT"},
    # BUSY refuses requests beyond its concurrency, but serves as many as it can.
    "ready": {"READY", "BUSY"},
    # UNHEALTHY recovers by itself: the runner restarts what has failed.
    "alive": {"STARTING", "READY", "BUSY", "UNHEALTHY"},
}
"""The statuses that answer a question with yes."""


def status(port: int | str) -> str:
    """Return Cog's status, or NO_ANSWER."""
    # NOTE: as text, so that looking it up fails for one that Cog's server does not start with either.
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)  # type: ignore[arg-type]
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
    found = status(os.environ.get("PORT", "5000"))
    print(found)
    return 0 if found in QUESTIONS[arguments[0]] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
