"""``inspect`` and ``plan`` tell how a model's calls are read, from a folder and from a tar."""

import json
from pathlib import Path

import pytest

from cli.main import main
from tests.engine.samples import FILES, packed, write_files
from tests.runner.chat.families.answers import tokenizer_with
from tests.runner.chat.families.test_recognition import HERMES, template

UNREAD = template("<call>{{ tool.name }}!{{ tool.arguments.place }}</call>")


@pytest.mark.parametrize(
    ("text", "told"),
    [(template(HERMES), "tool calls and reasoning: hermes"), (UNREAD, "no model family reads the calls")],
)
def test_inspect_tells_the_family(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tokenizer_with(("[end]",)).to_str().encode()
    files = {**FILES, "tokenizer.json": tokenizer, "chat_template.jinja": text.encode()}
    for place in (write_files(tmp_path / "engine", files), packed(tmp_path, files)):
        assert main(["inspect", str(place)]) == 0
        assert told in capsys.readouterr().out


def test_plan_tells_the_family_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    tiny = Path("builder/examples/tiny/model")
    files = {each.name: each.read_bytes() for each in tiny.iterdir()}
    config = json.loads(files["tokenizer_config.json"]) | {"chat_template": UNREAD}
    write_files(folder, {**files, "tokenizer_config.json": json.dumps(config).encode()})
    assert main(["plan", str(folder)]) == 0
    assert "no model family reads the calls that the chat template writes" in capsys.readouterr().out
