"""Inputs of hostile sizes are refused with a code: no process ends or grows, and others are served."""

import threading
from pathlib import Path
from typing import Any

import pytest

from engine.machine.processes import descendants
from tests.runner.servers import CogUnderTest

pytestmark = pytest.mark.servers

MIB = 1 << 20
QUESTION = "What is machine learning?"

HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a template of many prompts": ({"prompt": "a" * 20_000, "prompt_template": "{prompt}" * 8000}, "E1002"),
    "a long prompt": ({"prompt": "hi there " * 2_000_000}, "E1002"),
    "many stop sequences": ({"prompt": "hi", "stop_sequences": "," * 5_000_000}, "E1005"),
    "many messages": ({"messages": "[" + "{}," * 20_000 + "{}]"}, "E1005"),
    "too many messages": ({"messages": "[" + "{}," * 150_000 + "{}]"}, "E1002"),
    "a long guide": ({"prompt": "hi", "regex": "a" * 5_000_000}, "E1105"),
    "a long adapter name": ({"prompt": "hi", "lora_name": "a" * 5_000_000}, "E1005"),
}


def peaks_mib(cog: CogUnderTest) -> dict[int, float]:
    peaks = {}
    server = cog.server._process.pid
    for pid in [server, *descendants(server)]:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        peaks[pid] = next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)
    return peaks


@pytest.mark.parametrize("case", HOSTILE)
def test_an_input_of_hostile_size_is_refused_and_costs_others_nothing(cog: CogUnderTest, case: str) -> None:
    inputs, code = HOSTILE[case]
    cog.predict(prompt=QUESTION, max_tokens=3)
    before = peaks_mib(cog)
    prediction: dict[str, Any] = {}
    hostile = threading.Thread(target=lambda: prediction.update(cog.predict(**inputs)))
    hostile.start()
    other = cog.predict(prompt=QUESTION, max_tokens=3)
    hostile.join()
    assert "".join(other["output"]) == cog.model.expected_text(QUESTION, 3)
    assert prediction["status"] == "failed"
    assert f": {code} " in prediction["error"]
    assert len(prediction["error"]) < 1000
    after = peaks_mib(cog)
    body_mib = sum(map(len, inputs.values())) / MIB
    grown = {pid: after[pid] - before.get(pid, 0.0) for pid in after if pid in before}
    assert before.keys() <= after.keys()
    assert max(grown.values()) < 64 + body_mib
    assert cog.status() == "READY"
