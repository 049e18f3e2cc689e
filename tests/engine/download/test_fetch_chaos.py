"""A server that misbehaves at random: the content arrives as it is, or a coded error does."""

import random
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.download.fetch import fetch
from errors.coded_error import CodedError
from tests.engine.download.test_fetch import CONTENT, FAST, read_all
from tests.engine.tar_server import Fault, TarServer
from tests.scripted_server import Asked

SHORT = CONTENT[:400_000]

FAULTS = [
    Fault(body_bytes=0),
    Fault(body_bytes=1),
    Fault(body_bytes=30_000),
    Fault(body_bytes=30_000, reset=True),
    Fault(status=503),
    Fault(status=429, headers={"Retry-After": "0"}),
    Fault(status=404),
    Fault(headers={"Content-Range": "bytes 0-5/400000"}),
    Fault(etag='"v2"', content=SHORT[::-1]),
]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    kinds=st.sets(st.sampled_from(range(len(FAULTS))), max_size=4),
    has_ranges=st.booleans(),
    connections=st.integers(1, 6),
)
def test_whatever_the_server_does(seed: int, kinds: set[int], has_ranges: bool, connections: int) -> None:
    choice = random.Random(seed)
    guard = threading.Lock()

    def fault(request: Asked) -> Fault | None:
        with guard:
            return choice.choice([None, None, None, *(FAULTS[kind] for kind in kinds)])

    transfer = replace(FAST, connections=connections, part_bytes=30_011, parts_in_memory=3, attempts=4)
    with TarServer(SHORT) as server:
        server.has_ranges = has_ranges
        server.fault = fault
        try:
            with fetch(server.url, transfer=transfer) as source:
                content = read_all(source)
        except CodedError:
            pass
        else:
            assert content in (SHORT, SHORT[::-1])
    assert not [thread for thread in threading.enumerate() if thread.name == "fetch"]
