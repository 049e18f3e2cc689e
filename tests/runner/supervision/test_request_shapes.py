"""Shapes of the last requests: nothing of a prompt is in them, and any process can read them at any time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from runner.supervision import flight_recorder
from runner.supervision.flight_recorder import KEPT, RequestShapes, read_shapes, shape_of


def test_a_shape_has_numbers_and_sizes_and_nothing_of_a_prompt() -> None:
    inputs = {
        "input_ids": [17, 23, 42],
        "temperature": 0.5,
        "streaming": True,
        "stop": "secret",
        "x": [0.25],
    }
    shape = shape_of(inputs)
    assert shape == {
        "input_ids_count": 3,
        "temperature": 0.5,
        "streaming": True,
        "stop_count": len("secret"),
        "x_count": 1,
    }


def test_a_request_is_told_as_it_goes(tmp_path: Path) -> None:
    shapes = RequestShapes("openai", tmp_path / "file")
    assert read_shapes(tmp_path / "file") == []
    shape = shapes.begin({"input_ids": [1, 2]})
    shape.received(3)
    shape.received(4)
    (running,) = read_shapes(tmp_path / "file")
    assert (running["api"], running["output_tokens"], running["ended"]) == ("openai", 7, None)
    shape.ended("E2105")
    (ended,) = read_shapes(tmp_path / "file")
    assert ended == {**running, "ended": "E2105"} == shapes.read()[0]


def test_the_last_are_kept_and_one_that_was_dropped_writes_nowhere() -> None:
    shapes = RequestShapes("cog")
    begun = [shapes.begin({"number": number}) for number in range(KEPT + 3)]
    for number, shape in enumerate(begun):
        shape.received(number)
        shape.ended("done" if number % 2 else "E2107")
    read = sorted(shapes.read(), key=lambda each: each["inputs"]["number"])
    assert [each["inputs"]["number"] for each in read] == list(range(3, KEPT + 3))
    assert [each["output_tokens"] for each in read] == list(range(3, KEPT + 3))
    assert all(each["ended"] == ("done" if each["inputs"]["number"] % 2 else "E2107") for each in read)


def test_a_place_is_zeroed_for_the_next_request() -> None:
    shapes = RequestShapes("cog")
    shapes.begin({}).received(5)
    for _ in range(KEPT):
        shapes.begin({})
    assert {each["output_tokens"] for each in shapes.read()} == {0}


def test_what_is_half_written_or_too_long_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read_shapes(path) == []
    path.touch()
    assert read_shapes(path) == []
    shapes = RequestShapes("openai", path)
    shapes.begin({f"name {number}": number for number in range(1000)})
    shapes.begin({"number": 2})
    assert [each["inputs"] for each in read_shapes(path)] == [{"number": 2}]
    with path.open("r+b") as file:
        file.seek(flight_recorder._COUNTS_BYTES + flight_recorder._SHAPE_BYTES)
        file.write(b'{"api": "' + bytes(100))
    assert read_shapes(path) == []


def test_a_process_that_was_killed_leaves_what_it_had(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path;"
        "from runner.supervision.flight_recorder import RequestShapes;"
        "RequestShapes('openai', Path(sys.argv[1])).begin({'input_ids': [1]}).received(3);"
        "print('begun', flush=True); time.sleep(60)"
    )
    path = tmp_path / "file"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    (shape,) = read_shapes(path)
    assert shape["inputs"] == {"input_ids_count": 1}
    assert shape["output_tokens"] == 3


def test_a_real_request_fits_several_times() -> None:
    document = {"inputs": {f"a_name_of_usual_length_{number}_count": 1e-17 / 3 for number in range(40)}}
    assert len(json.dumps(document)) < flight_recorder._SHAPE_BYTES
