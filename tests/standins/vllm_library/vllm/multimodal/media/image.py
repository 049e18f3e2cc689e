from typing import Any


class ImageMediaIO:
    def load_bytes(self, data: bytes) -> Any: ...
