"""What the scripted model says to the questions that these tests ask, in the form of docs/rehearse.md."""

import json
from pathlib import Path
from typing import Any

WEATHER = "What is the weather in Paris?"
THOUGHT = "The user asks for the weather. I call the tool."
TEMPERATURE = "18 degrees"
"""What the tool says."""
ANSWER = "It is 18 degrees in Paris."

TWO_CITIES = "Compare Paris and Rome."
TWO_ANSWER = "Rome is warmer."

CITY = "Name a city."
"""Question whose answer is JSON."""
EXTRACT = "Extract the city: Paris is large."
"""Question whose answer is a call of the tool ``City``."""

POEM = "Roses are red."
BASH = "Write poem.txt with the tool Bash."
EXEC_COMMAND = "Write poem.txt with the tool exec_command."
DONE = "The poem is written."


def call(name: str, /, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def rules(workspace: Path) -> list[dict[str, Any]]:
    paris, rome = call("get_weather", city="Paris"), call("get_weather", city="Rome")
    thought = f"<think>\n{THOUGHT}\n</think>\n\n"
    command = f"echo '{POEM}' > {workspace / 'poem.txt'}; echo The poem is there."
    return [
        {"when": WEATHER, "answer": [thought, {"text": paris, "tokens_per_step": 3}]},
        {"when": TEMPERATURE, "answer": ANSWER},
        {"when": TWO_CITIES, "answer": f"I ask for both.\n{paris}\n{rome}"},
        {"when": "24 degrees", "answer": TWO_ANSWER},
        {"when": CITY, "answer": '{"name": "Paris", "is_large": true}'},
        {"when": EXTRACT, "answer": call("City", name="Paris", is_large=True)},
        {"when": BASH, "answer": call("Bash", command=command)},
        {"when": EXEC_COMMAND, "answer": call("exec_command", cmd=command)},
        {"when": "The poem is there.\n", "answer": DONE},
        {"answer": "Hello!"},
    ]
