from typing import Any


class MultiModalCache:
    @classmethod
    def get_item_size(cls, value: Any) -> int: ...
