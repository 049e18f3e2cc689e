from typing import Any


def open_image(fp: Any) -> Any: ...
