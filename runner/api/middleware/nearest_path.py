"""The endpoint that a client probably meant by an unknown path: most have a wrong base URL."""

import difflib
from collections.abc import Sequence

_MOST_CHARACTERS = 200
_OTHER_NAMES = {
    "generate": "/v1/completions",
    "embed": "/v1/embeddings",
    "tags": "/v1/models",
    "healthz": "/health",
    "livez": "/health",
    "readyz": "/ready",
    "docs": "/openapi.json",
}
"""Our endpoints by the last segment of the paths of other servers."""


def nearest_path(path: str, paths: Sequence[str]) -> str | None:
    """Return the path of ``paths`` that is most like ``path``; None if none is."""
    known = [each for each in paths if each != "/" and "{" not in each]
    path = path.lower()
    if len(path) > _MOST_CHARACTERS:
        return None
    longest, shortest = sorted(known, key=len, reverse=True), sorted(known, key=len)
    last = path.rpartition("/")[2]
    found = (
        *(each for each in longest if path.endswith(each)),  # /v1/v1/models, /v1/messages/v1/messages
        *(each for each in shortest if each.endswith(path)),  # /chat/completions
        *difflib.get_close_matches(path, known, 1, 0.8),  # /v1/completion
        *(each for each in longest if path.endswith(each.removeprefix("/v1"))),  # /openai/chat/completions
        *(each for each in longest if path.startswith(f"{each}/")),  # /v1/models/x/y
        *(each for each in shortest if each.startswith(f"{path}/")),  # /v1/chat
        *(each for each in shortest if last in each.split("/")),  # /api/chat
        *filter(None, [_OTHER_NAMES.get(last)]),
    )
    return next((each for each in found if each in known), None)
