"""Where a value of JSON ends does not depend on how its text is split."""

import pytest

from runner.chat.families.markers import Markers
from runner.chat.families.syntax.value_scan import Scan, json_stops
from tests.runner.chat.families.answers import tokenizer_with

MARKERS = Markers(tokenizer_with(("<|end|>",), ("<call>",)), ("<|end|>", "<call>", "</call>"))
STOPS = json_stops(MARKERS, ("</call>",))
END = MARKERS.written("<|end|>")
VALUES = [
    ('{"a": [1, "]}\\"", {"\\\\": "\\\\"}], "</call>": "\\u00e9"}', ""),
    ('"\\\\\\""', ""),
    ('[[["]"]]', "</call>"),
    ('["\\', END),
]


@pytest.mark.parametrize(("value", "found"), VALUES)
def test_a_value_has_one_end(value: str, found: str) -> None:
    for cut in range(len(value)):
        for other in range(cut, len(value)):
            scan = Scan(STOPS)
            assert scan.search(value[:cut]) is None
            assert scan.search(value[cut:other]) is None
            assert scan.scan(value[other:] + found + "x", 0) == (len(value) - other, found)
