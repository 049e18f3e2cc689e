from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class RequestError:
    code: str
    message: str
    retryable: bool = False
