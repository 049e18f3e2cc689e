"""The load tests as they are typed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runner.servers import CogUnderTest
from tests.scripted_server import Asked, ScriptedServer, Write, json_answer

pytestmark = pytest.mark.servers

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTED = ["--target", "cog-triton", "--rate", "8", "--unit", "rps", "--n_input_tokens", "100"]
DOCUMENTED += ["--n_output_tokens", "100"]


def perf(
    *arguments: object, script: str = "scripts/test_perf.py", **environment: str
) -> tuple[int, str, str]:
    """Exit code, output and errors. -S -I: with the standard library alone, as any python3 has it."""
    command = [sys.executable, "-S", "-I", str(ROOT / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


def test_the_documented_command_works_as_it_is_typed(cog: CogUnderTest, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("figures.json", "requests.csv", "report.html")]
    written = [word for pair in zip(("--json", "--csv", "--report"), files, strict=True) for word in pair]
    code, output, errors = perf(*DOCUMENTED, "--duration", 2, *written, PORT=str(cog.port))
    assert code == 0, errors
    assert "Input tokens: 100\n" in output
    assert re.search(r"^Total requests completed: 16$", output, re.MULTILINE)
    assert re.search(r"^--Actual mean: \d+\.\d{3}$", output, re.MULTILINE)
    figures = json.loads(files[0].read_text())
    assert figures["output_tokens"] == 16 * 100
    assert figures["input_tokens"] == 16 * 100
    assert len(files[1].read_text().splitlines()) == 17
    assert files[2].read_text().startswith("<!DOCTYPE html>")


def test_figures_alone_go_to_the_terminal(cog: CogUnderTest) -> None:
    code, output, _ = perf(
        *DOCUMENTED, "--duration", 0.3, "--json", "-", "--url", cog.url, "--protocol", "sse"
    )
    assert code == 0
    assert json.loads(output)["first_token_s"]["count"] == 3


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--target", "owner/name"], "E1006 InvalidSetting: REPLICATE_API_TOKEN must be set"),
        (["--target", "nobody"], "E1005 InvalidInput: target must be cog-triton, mock, triton, openai or"),
        (["--target", "triton", "--tps", "3"], "E1005 InvalidInput: target must be mock with --tps"),
        (["--url", "localhost:5000"], "E1005 InvalidInput: url must be a URL that begins with http"),
        (["--url", "http://127.0.0.1:1"], "E1501 LoadTargetUnreachable: http://127.0.0.1:1 does not answer"),
        (["--extra", "[]"], "E1005 InvalidInput: extra must be a JSON object"),
        (["--slo", "x=1"], "E1005 InvalidInput: slo must be"),
        (["--n_input_tokens", "0"], "E1005 InvalidInput: n_input_tokens must be above 0"),
        (
            ["--n_input_tokens", "99999999999"],
            "E1005 InvalidInput: n_input_tokens must be above 0 and at most",
        ),
        (["--report", "/no/such/folder/x.html"], "E1005 InvalidInput: file must be a file in a folder"),
        (["--json", "/tmp"], "E1005 InvalidInput: file must be a file in a folder"),
    ],
)
def test_a_wrong_option_is_one_sentence(arguments: list[str], error: str) -> None:
    code, output, errors = perf("--rate", 8, "--unit", "rps", "--duration", 1, *arguments)
    assert code == 2
    assert output == ""
    assert errors.startswith(error)
    assert len(errors.splitlines()) == 1


def test_a_server_that_refuses_the_first_request_is_not_tested() -> None:
    refusal = json_answer('{"detail":"no such input"}', 422)

    with ScriptedServer(lambda asked, write: write(refusal) is None) as server:
        code, _, errors = perf("--rate", 8, "--unit", "rps", "--duration", 1, "--url", server.url)
    assert code == 2
    assert errors.startswith(f"E1502 LoadTargetRefused: {server.url} rejected")
    assert len(server.asked) == 1


@pytest.mark.parametrize("context", ["12", '"12"'])
def test_a_length_over_the_models_context_is_refused_before_the_test(context: str) -> None:
    """Another server's list may have anything there, which is then not taken for the context."""
    usage = '{"usage": {"prompt_tokens": 5, "completion_tokens": 1}}'
    listed = json_answer(f'{{"data": [{{"id": "a", "max_model_len": {context}}}]}}')
    stream = f"data: {usage}\n\ndata: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(stream)}\r\n\r\n"

    def answer(asked: Asked, write: Write) -> bool:
        write(listed if asked.path == "/v1/models" else (head + stream).encode())
        return True

    lengths = ("--n_input_tokens", 5, "--n_output_tokens", 8)
    with ScriptedServer(answer) as server:
        load = ("--rate", 1, "--unit", "rps", "--duration", 1, "--target", "openai", "--url", server.url)
        code, _, errors = perf(*load, *lengths)
    if context == "12":
        assert (code, len(server.asked)) == (2, 3)
        told = "E1005 InvalidInput: n_output_tokens must be at most 7, the room of a's context"
        assert errors.startswith(told)
    else:
        assert (code, errors) == (0, "")


@pytest.mark.parametrize("script", ["scripts/test_perf.py", "mock_cog_triton/test_perf.py"])
def test_help_and_usage_errors_need_nothing_but_python(script: str) -> None:
    code, output, _ = perf("--help", script=script)
    assert code == 0
    assert "--n_output_tokens" in output
    assert "--n-output-tokens" not in output
    code, _, errors = perf("--nothing", script=script)
    assert (code, errors.startswith("test_perf.py: ")) == (2, True)
