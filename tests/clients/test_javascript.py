"""npm's clients: Vercel's AI SDK, and the coding agents Codex and Claude Code, which write a file."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import Runner
from tests.clients.documented import PATH, needed_javascript
from tests.clients.script import ANSWER, BASH, DONE, EXEC_COMMAND, POEM, THOUGHT, WEATHER

pytestmark = pytest.mark.servers

_DEADLINE_S = 300.0


def run(folder: Path, *command: str, **environment: str) -> str:
    """Run a program of npm's, with nothing of this environment but ``PATH``; what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": PATH, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def program(name: str) -> str:
    return str(needed_javascript() / "node_modules" / ".bin" / name)


@pytest.fixture
def poem(workspace: Path) -> Iterator[Path]:
    path = workspace / "poem.txt"
    yield path
    path.unlink(missing_ok=True)


def test_vercels_ai_sdk_calls_a_tool_and_answers(scripted: Runner) -> None:
    url = f"{scripted.openai_url}/v1"
    got = json.loads(run(needed_javascript(), "node", "weather.mjs", url, scripted.model(), WEATHER))
    assert got["reasoning"].strip() == THOUGHT
    assert (got["whole"], got["streamed"], got["asked"]) == (ANSWER, ANSWER, ["Paris", "Paris"])


def test_codex_writes_a_file_by_a_command(scripted: Runner, poem: Path, tmp_path: Path) -> None:
    provider = {"name": "cog-triton", "base_url": f"{scripted.openai_url}/v1", "wire_api": "responses"}
    options = [f"model_providers.local.{key}={value}" for key, value in provider.items()]
    options += ["model_provider=local", "web_search=disabled", "features.multi_agent=false"]
    output = run(
        poem.parent,
        *(program("codex"), "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"),
        *("--model", scripted.model()),
        *(part for option in options for part in ("-c", option)),
        EXEC_COMMAND,
        HOME=str(tmp_path),
    )
    assert poem.read_text() == f"{POEM}\n"
    assert output.strip().endswith(DONE)


def test_claude_code_writes_a_file_by_a_command(scripted: Runner, poem: Path, tmp_path: Path) -> None:
    output = run(
        poem.parent,
        *(program("claude"), "--model", scripted.model()),
        *("--allowedTools", "Bash", "--print", BASH),
        HOME=str(tmp_path),
        ANTHROPIC_BASE_URL=scripted.openai_url,
        ANTHROPIC_API_KEY="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )
    assert poem.read_text() == f"{POEM}\n"
    assert output.strip() == DONE
