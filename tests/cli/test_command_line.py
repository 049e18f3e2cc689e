"""Options, environment and defaults of the commands; nothing is started."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from engine.machine.root import SOURCE_ROOT
from errors.settings import InvalidSetting
from runner.cog_server.launch import CogServer, environment
from runner.settings.ports import Listener, check_ports_free, free_ports
from tests.runner.paced_engine import make_tokenizer
from tests.runner.tensorrt_llm_engine import make_compiled_model, write_engine_python
from tests.standins.gpus import make_gpus, without_driver

EXAMPLE = SOURCE_ROOT / "builder" / "examples" / "paced" / "config.yaml"
VARIABLES = ("PORT", "TRITON_HOST", "OPENAI_HOST", "COG_WEIGHTS", "ENGINE_DIR", "COG_TRITON_CONFIG")


class Started(Exception):
    """What a server would have been started with."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(kind)
        self.options = options


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COG_TRITON_CACHE", str(tmp_path / "cache"))
    # Another server may have the default ports of the machine that runs the tests.
    monkeypatch.setattr("cli.serve.check_ports_free", lambda *listeners: None)
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "paced.tar"
    assert main(["build", str(EXAMPLE), "-o", str(path)]) == 0
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(kind: str, **options: Any) -> None:
        raise Started(kind, **options)

    monkeypatch.setattr("cli.serve.CogServer", start)


def options_of(*arguments: str) -> dict[str, Any]:
    with pytest.raises(Started) as caught:
        main(["serve", *arguments])
    return caught.value.options


@pytest.mark.usefixtures("started")
def test_serve_listens_on_loopback_unless_a_variable_or_an_option_says_otherwise(
    tar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(str(tar))
    assert (options["host"], options["port"]) == ("127.0.0.1", 5000)
    assert options["extra"]["TRITON_HOST"] == options["extra"]["OPENAI_HOST"] == "127.0.0.1"
    monkeypatch.setenv("PORT", "5001")
    for name, other in (("TRITON_HOST", "OPENAI_HOST"), ("OPENAI_HOST", "TRITON_HOST")):
        with monkeypatch.context() as patch:
            patch.setenv(name, "0.0.0.0")
            options = options_of(str(tar))
            assert options["port"] == 5001
            assert name not in options["extra"]
            assert other in options["extra"]
            options = options_of(str(tar), "--host", "127.0.0.2", "--port", "5002")
            assert (options["host"], options["port"]) == ("127.0.0.2", 5002)
            assert options["extra"][name] == "127.0.0.2"


@pytest.mark.usefixtures("started")
def test_an_engine_that_is_given_wins_over_those_of_variables(
    tar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("server.yaml").write_text("instantiate: {weights: from-yaml.tar}")
    monkeypatch.setenv("COG_TRITON_CONFIG", str(Path("server.yaml").absolute()))
    monkeypatch.setenv("COG_WEIGHTS", "from-variable.tar")
    assert options_of(str(tar))["extra"]["COG_WEIGHTS"] == str(tar)
    monkeypatch.chdir(tar.parent)
    for name in ("COG_WEIGHTS", "ENGINE_DIR"):
        monkeypatch.delenv("COG_WEIGHTS", raising=False)
        monkeypatch.setenv(name, tar.name)
        assert options_of()["extra"]["COG_WEIGHTS"] == str(tar)


@pytest.mark.usefixtures("started")
def test_a_port_that_is_none_is_e1006(
    tar: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for port in ("0", "99999", "abc", "-1", ""):
        monkeypatch.setenv("PORT", port)
        for name, option in (("--port", ["--port=" + port]), ("PORT", [])):
            assert main(["serve", str(tar), *option]) == 2
            told = f"E1006 InvalidSetting: {name} must be a port, 1 to 65535, but is {port!r}.\n"
            assert capsys.readouterr().err == told


@pytest.mark.parametrize("command", [["demo"], ["doctor"], ["metrics"]])
def test_every_command_reads_settings_by_the_same_parser(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("PORT", "abc"), ("COG_MAX_CONCURRENCY", "abc")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert main(command) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.startswith(f"E1006 InvalidSetting: {name} must be ")) == ("", True)


def test_cogs_server_is_not_started_with_what_cog_would_ignore(tmp_path: Path) -> None:
    extra = {"COG_MAX_CONCURRENCY": "many"}
    with pytest.raises(Exception, match="E1006 InvalidSetting: COG_MAX_CONCURRENCY"):
        CogServer("builder", host="127.0.0.1", port=5000, log_path=tmp_path / "log", extra=extra)


def test_paths_stay_those_of_the_folder_where_the_command_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_TEMPLATE", "template.jinja")
    Path("config.yaml").write_text("instantiate: {system_prompt: x}")
    variables = environment("runner", 5000, {})
    assert variables["CHAT_TEMPLATE"] == str(Path.cwd() / "template.jinja")
    assert variables["COG_TRITON_CONFIG"] == str(Path.cwd() / "config.yaml")
    for script, expected in (("script.yaml", str(Path.cwd() / "script.yaml")), ("requests", "requests")):
        monkeypatch.setenv("COG_TRITON_SCRIPT", script)
        assert environment("runner", 5000, {})["COG_TRITON_SCRIPT"] == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--triton", "http://gpu:8000"], "E1006 InvalidSetting: --triton must be HOST:PORT "),
        (["--port", "0"], "E1006 InvalidSetting: --port must be a port, 1 to 65535, but is '0'."),
        (["--port", "many"], "E1006 InvalidSetting: --port must be a port, 1 to 65535, but is 'many'."),
        (["--tokenizer", "engine.tar"], "E1006 InvalidSetting: --tokenizer must be a model's folder, "),
        ([], "E1006 InvalidSetting: --max-model-len is required, because the config.json of "),
        (["--max-model-len", "1"], "E1006 InvalidSetting: --max-model-len must be a whole number of "),
        (["--max-model-len", "99"], "E2113 ExternalTritonUnavailable: Triton at localhost:1 can't be used ("),
    ],
)
def test_api_refuses_what_it_can_not_serve(
    options: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model").mkdir()
    make_tokenizer().save("model/tokenizer.json")
    monkeypatch.setenv("TRITON_START_TIMEOUT", "0.001")
    # A port that is a runner's Triton's by default is free for this one.
    monkeypatch.setenv("TRITON_GRPC_PORT", str(port := free_ports(1)[0]))
    given = ["--triton", "localhost:1", "--tokenizer", "model", "--port", str(port), *options]
    assert main(["api", *given]) == (1 if told.startswith("E2") else 2)
    assert capsys.readouterr().err.splitlines()[-1].startswith(told)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("help", 0, "usage: cog-triton [-h]"),
        ("help serve", 0, "serve [-h]"),
        ("--version", 0, "cog-triton "),
        ("sevre", 2, "did you mean serve?"),
        ("zzz", 2, "there are plan,"),
        ("build", 2, "the following arguments are required: config"),
    ],
)
def test_help_the_version_and_what_is_wrong_are_told(
    arguments: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments.split())
    assert caught.value.code == code
    assert told in "".join(capsys.readouterr())
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: cog-triton")


@pytest.mark.parametrize(
    "command",
    [
        *("plan", "build", "migrate", "inspect", "serve", "instantiate"),
        pytest.param("doctor", marks=pytest.mark.servers),
    ],
)
def test_an_unknown_scheme_and_a_path_that_can_not_be_looked_at_are_told_in_a_sentence(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, sentence in (("ftp://host/x", "ftp://host/x"), (5000 * "a", "File name too long")):
        assert main([command, given]) == 2
        told = "".join(capsys.readouterr())
        assert sentence in told
        assert len(told) < 6000
        assert "Traceback" not in told


_NEITHER = (
    "it is neither a build config (a YAML file or its URL) nor a model (OWNER/NAME on the Hugging Face Hub"
)
WRONG_ARGUMENTS = {
    "inspect none.tar": "E1301 EngineNotFound: none.tar does not exist; give an engine.tar (path or URL)",
    "serve loop.tar": "E1301 EngineNotFound: loop.tar does not exist; give an engine.tar (path or URL)",
    "inspect m.gguf": "E1301 EngineNotFound: m.gguf is no engine; for a model: `cog-triton plan m.gguf`.",
    "inspect a/b": "E1301 EngineNotFound: a/b is no engine; for a model: `cog-triton plan a/b`.",
    "inspect README": "it does not begin as a tar does, so it is no engine.tar; fetch it again",
    "serve README": "it does not begin as a tar does, so it is no engine.tar; fetch it again",
    "plan a/b/c": f"a/b/c can't be read: there is no such file, and {_NEITHER}",
    "build folder": f"folder can't be read: {_NEITHER}",
    "build e.tar": f"e.tar can't be read: {_NEITHER}",
    "serve a/b:Q4": "E1005 InvalidInput: MODEL must be owner/name or owner/name:FILE.gguf, but is 'a/b:Q4'",
    "serve a/b --engine vllm": "E1323 GpuRequired: A vllm engine needs an NVIDIA GPU and none is visible",
}


def test_a_wrong_argument_is_told_what_the_command_takes(
    tar: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.serve.visible_gpus", tuple)
    Path("folder").mkdir()
    Path("m.gguf").write_bytes(b"GGUF")
    Path("README").write_text(1024 * "Read me.")
    Path("e.tar").symlink_to(tar)
    Path("loop.tar").symlink_to("loop.tar")
    for command, told in WRONG_ARGUMENTS.items():
        assert main(command.split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line
        assert ("leave out --engine" in line) == ("--engine" in command)


def test_a_taken_port_is_named_with_its_variable(
    tar: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.serve.check_ports_free", check_ports_free)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(tar), "--port", str(port)]) == 2
    assert capsys.readouterr().err.startswith(f"E1007 PortInUse: Port {port} for Cog's server")


def test_a_dry_run_shows_the_steps_and_builds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(EXAMPLE), "--dry-run"]) == 0
    assert any(line.endswith("pack engine.tar") for line in capsys.readouterr().out.splitlines())
    assert {path.name for path in Path().iterdir()} <= {"cache"}


def test_inspect_tells_the_manifest_verifies_and_finds_a_flipped_bit(
    tar: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tar), "--verify"]) == 0
    shown = capsys.readouterr().out
    assert "paced" in shown
    assert "verified" in shown
    assert main(["inspect", str(tar), "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["engine_kind"] == "paced"
    assert "tokenizer.json" in manifest["files"]
    data = bytearray(tar.read_bytes())
    data[len(data) // 2] ^= 1
    Path("flipped.tar").write_bytes(data)
    assert main(["inspect", "flipped.tar", "--verify"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("E13")


@without_driver
def test_inspect_gpu_gives_the_runners_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tar = str(make_compiled_model(tmp_path / "model").tar)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("COG_TRITON_ENGINE_PYTHON", str(write_engine_python(tmp_path)))
    make_gpus(tmp_path / "bin", sm=90, count=2, name="Stand-in", memory_mib=81559, free_mib=70_000)
    assert main(["inspect", "--gpu", tar]) == 0
    told = capsys.readouterr().out
    assert "here        Stand-in, SM 90, 68.4 GiB of 79.6 GiB free; Stand-in" in told
    assert "verdict     this machine can run it" in told
    for count, said, error in ((1, "SM 86", "E1322"), (0, "no NVIDIA GPU", "E1323")):
        make_gpus(tmp_path / "bin", count=count)
        assert main(["inspect", "--gpu", tar]) == 2
        printed = capsys.readouterr()
        assert said in printed.out
        assert printed.err.startswith(error)


def test_a_host_of_another_machine_is_named() -> None:
    with pytest.raises(InvalidSetting, match="The host for Cog must be an address of this machine"):
        Listener("192.0.2.1", 5000, "Cog", "PORT").is_free()


def test_a_destination_that_cannot_be_written_is_told_before_anything_is_built(
    capsys: pytest.CaptureFixture[str],
) -> None:
    os.mkfifo("pipe")
    Path("README.md").write_text("Read me.")
    wrong = dict.fromkeys((".", "new/", "pipe", "README.md"), "E1005")
    for destination, code in {**wrong, "/proc/none/engine.tar": "E2306"}.items():
        assert main(["build", str(EXAMPLE), "-o", destination]) == (2 if code.startswith("E1") else 1)
        printed = capsys.readouterr()
        assert (printed.out, printed.err[:5]) == ("", code)
    assert Path("pipe").is_fifo()
    assert Path("README.md").read_text() == "Read me."


def test_what_is_at_the_destination_stays_until_the_build_has_succeeded() -> None:
    Path("engine.tar").write_text("an earlier one")
    Path("config.yaml").write_text("{engine: paced, model_path: nowhere, paced: {tokens_per_second: 1}}")
    assert main(["build", "config.yaml", "-o", "engine.tar"]) != 0
    assert Path("engine.tar").read_text() == "an earlier one"
    assert {path.name for path in Path().iterdir()} <= {"engine.tar", "config.yaml", "cache"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "E1006 InvalidSetting: config must be a readable YAML file (No such"),
        ("- 1", "E1006 InvalidSetting: team/x.yaml must be a mapping"),
        ("instantiate: {weigths: a}", "E1006 InvalidSetting: team/x.yaml: a key of instantiate must be"),
        ("instantiate: {system_prompt: 5}", "E1006 InvalidSetting: team/x.yaml: instantiate.system_prompt"),
        ("instantiate: {base_model: 5}", "E1401 ImageReferenceInvalid: team/x.yaml: base_model (or --base)"),
    ],
)
def test_instantiate_names_the_file_that_is_wrong(
    text: str | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("team").mkdir()
    if text is not None:
        Path("team/x.yaml").write_text(text)
    assert main(["instantiate", "team/x.yaml"]) == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_a_kind_is_not_asked_of_what_has_one(tar: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["serve"], ["generate", "hi"], ["plan"], ["build"]):
        for named in (str(tar), str(EXAMPLE)):
            assert main([command[0], named, *command[1:], "--engine", "vllm"]) == 2
            assert capsys.readouterr().err.startswith("E1005 InvalidInput: --engine must be left out")


def test_generate_checks_its_options_before_it_starts_anything(
    tar: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--max-tokens=0", "--top-p=1.5", "--temperature=-1", "--top-k=-2"):
        assert main(["generate", str(tar), "hi", option]) == 2
        name = option.partition("=")[0]
        assert capsys.readouterr().err.startswith(f"E1005 InvalidInput: {name} must be ")


def test_metrics_of_no_runner_are_e1008(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"cog-triton-{os.getuid()}" / "8000" / "metrics"
    left.mkdir(parents=True)
    (left / "cog-1").write_bytes(bytes(1 << 20))
    assert main(["metrics"]) == 2
    assert capsys.readouterr().err.startswith("E1008 MissingRequirement")


def test_ctrl_c_ends_a_command_where_sigint_is_ignored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr("cli.plan.source_of", lambda options: signal.raise_signal(signal.SIGINT))
    assert main(["plan", "config.yaml"]) == 130
    assert capsys.readouterr().err.endswith("stopped\n")


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("by", ["argument", "MODEL_ID"])
def test_a_models_folder_becomes_an_engine_here_and_is_served(
    by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = str(SOURCE_ROOT / "builder" / "examples" / "tiny" / "model")
    if by == "MODEL_ID":
        monkeypatch.setenv("MODEL_ID", model)
    extra = options_of(*([model] if by == "argument" else []), "--engine", "transformers")["extra"]
    engine = Path(extra["ENGINE_DIR"])
    assert engine.is_relative_to(tmp_path / "cache" / "models")
    assert extra["MODEL_ID"] == extra["COG_WEIGHTS"] == ""
    assert (engine / "model.safetensors").stat().st_size > 1 << 20
