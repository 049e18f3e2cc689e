"""A request's id: the client's ``X-Request-ID`` if it can be repeated safely, else one of our own."""

import random
import re

REQUEST_ID_HEADER = "X-Request-ID"

_DIGIT_BITS = 4
_VALID_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_ID_LINE = re.compile(rb"\r\nx-request-id:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)


def random_id(num_digits: int) -> str:
    """Return random hexadecimal digits. They are no secret: ``secrets`` would ask the kernel for each id."""
    return f"{random.getrandbits(_DIGIT_BITS * num_digits):0{num_digits}x}"


def request_id_of(given: bytes | None) -> str:
    """Return the id that the client sent, ``given``; a random one if it is invalid or missing."""
    if given is not None and _VALID_ID.fullmatch(given):
        return given.decode()
    return random_id(32)


def request_id_in(head: bytes) -> str:
    """Return the id for a request with this HTTP/1 head."""
    line = _ID_LINE.search(head)
    return request_id_of(line[1] if line else None)
