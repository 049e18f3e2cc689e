"""Every environment variable is read in one place, and a wrong value is told by its name."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from errors.settings import InvalidSetting
from runner.settings.api_settings import default_processes
from runner.settings.cog_settings import COG_VARIABLES, CogSettings
from runner.settings.settings import PATH_VARIABLES, VARIABLES, load_settings

GOOD: list[tuple[str, str, str, Any]] = [
    ("STOP_SEQUENCES", "\n,User:", "stop_sequences", "\n,User:"),
    ("STOP_SEQUENCES", "", "stop_sequences", ""),
    ("PAD_ID", "7", "pad_id", 7),
    ("ALLOW_SPECIAL_TOKENS", "true", "allows_special_tokens", True),
    ("CHAT_FAMILY", "hermes", "chat_family", "hermes"),
    ("GENERATION_CONFIG", "none", "generation_config", "none"),
    ("GENERATION_CONFIG", '{"top_k": 5}', "generation_config", {"top_k": 5}),
    ("MAX_QUEUE_MS", "500", "max_queue_ms", 500),
    ("MIN_PRIORITY", "-5", "min_priority", {"": -5}),
    ("LOG_PERFORMANCE_METRICS", "True", "log_performance_metrics", True),
    ("LOG_PERFORMANCE_METRICS", "0", "log_performance_metrics", False),
    ("COG_TRITON_CACHE_LIMIT_GIB", "1.5", "cache_limit_gib", 1.5),
    ("TRITONSERVER_BACKEND_DIR", "/", "triton_backend_dir", Path("/")),
    ("TRITON_HANG_TIMEOUT", "10", "triton_hang_timeout_s", 10.0),
    ("FAILURE_WINDOW", "60", "failure_window_s", 60.0),
    ("TRITON_MAX_REQUESTS", "1", "triton_max_requests", 1),
    ("TRITON_MAX_BODY_BYTES", "1000000", "triton_max_body_bytes", 1_000_000),
    ("TRITON_MANAGEMENT", "true", "is_triton_managed", True),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://c/v1", "otlp_traces_endpoint", "https://c/v1"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "otlp_protocol", "http/protobuf"),
    ("OTEL_SDK_DISABLED", "true", "is_telemetry_disabled", True),
    ("OTEL_SERVICE_NAME", "mine", "service_name", "mine"),
    ("OPENAI_PORT", "0", "openai_port", 0),
    ("OPENAI_MODELS", "a, b/c,", "openai_models", ("a", "b/c")),
    ("API_KEYS", "one, two", "api_keys", ("one", "two")),
    ("ADMIN_API_KEYS", "root", "admin_api_keys", ("root",)),
    ("LORA_DIRS", "/tmp, /", "lora_dirs", (Path("/tmp"), Path("/"))),
    ("ROUTER_PROTOCOL", "vllm", "router_protocol", "vllm"),
    ("KV_EVENTS", "tcp://*:5557", "kv_events", "tcp://*:5557"),
    ("KV_EVENTS_REPLAY", "ipc:///run/replay", "kv_events_replay", "ipc:///run/replay"),
    ("KV_EVENTS_TOPIC", "kv@10.0.0.1@m", "kv_events_topic", "kv@10.0.0.1@m"),
    ("OPENAI_CORS_ORIGINS", "*", "openai_cors_origins", ("*",)),
    ("OPENAI_MAX_BODY_VALUES", "1000", "openai_max_body_values", 1000),
    ("OPENAI_MAX_HEADER_BYTES", "1000", "openai_max_header_bytes", 1000),
    ("OPENAI_MAX_CONNECTIONS", "10", "openai_max_connections", 10),
    ("OPENAI_RECEIVE_TIMEOUT", "10", "openai_receive_timeout_s", 10.0),
    ("ALLOWED_HOSTS", "a.example,b", "allowed_hosts", ("a.example", "b")),
    ("OPENAI_STREAM_KEEP_ALIVE", "5", "openai_stream_keep_alive_s", 5.0),
    ("OPENAI_TIMEOUT", "1.5", "openai_timeout_s", 1.5),
]
"""Variables and what they set, without those that other tests set to serve by."""

COG_GOOD: list[tuple[str, str, str, Any]] = [
    ("PORT", "5001", "port", 5001),
    ("COG_MAX_CONCURRENCY", "511", "max_concurrency", 511),
    ("COG_SETUP_TIMEOUT", "600", "setup_timeout_s", 600),
    ("COG_LOG_LEVEL", "warning", "log_level", "warning"),
    ("COG_THROTTLE_RESPONSE_INTERVAL", "0.25", "webhook_interval_s", 0.25),
    ("COG_STREAM_HISTORY_CAPACITY", "0", "stream_history_events", 0),
    ("TOKIO_WORKER_THREADS", "2", "tokio_threads", 2),
    ("COG_TRACE_CONFIGURED", "1", "is_tracing_configured", True),
    ("COG_TRACE_ENABLED", "No", "is_tracing_enabled", False),
    ("COG_TRACE_SAMPLER", "traceidratio", "trace_sampler", "traceidratio"),
    ("COG_TRACE_SAMPLER_ARG", "0.5", "trace_sampler_share", 0.5),
    ("OTEL_TRACES_SAMPLER", "always_off", "otel_sampler", "always_off"),
    ("OTEL_TRACES_SAMPLER_ARG", "1", "otel_sampler_share", 1.0),
]

BAD_FOR_COG = [
    *(("PORT", text) for text in ("abc", "", "0", "99999", "-1", "5_000", " 5000", "5000.5", "\u0665000")),
    *(("COG_MAX_CONCURRENCY", text) for text in ("abc", "", "0", "-1", "1.5", "1" * 30, "20000")),
    *(("COG_SETUP_TIMEOUT", text) for text in ("0", "1.5", "soon")),
    *(("COG_LOG_LEVEL", text) for text in ("trace", "INFO", "")),
    *(("COG_THROTTLE_RESPONSE_INTERVAL", text) for text in ("inf", "nan", "-1", "1s", "1e3")),
    *(("COG_STREAM_HISTORY_CAPACITY", text) for text in ("-1", "many")),
    *(("TOKIO_WORKER_THREADS", text) for text in ("0", "two", "100000")),
    ("COG_TRACE_CONFIGURED", "on"),
    ("COG_TRACE_ENABLED", "off"),
    ("COG_TRACE_SAMPLER", "sometimes"),
    ("COG_TRACE_SAMPLER_ARG", "2"),
    ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
    ("OTEL_TRACES_SAMPLER_ARG", "a half"),
]

_BAD_WORDS = """\
END_ID -1 </s>
PAD_ID 2.5
MAX_SEQUENCE_LENGTH 1 4k
WORLD_SIZE 0
LOG_PERFORMANCE_METRICS sometimes
MAX_PROMPT_BYTES 0
MAX_QUEUE_MS 0
ALLOW_SPECIAL_TOKENS perhaps
COG_TRITON_ENGINE_PYTHON /nowhere/python /
TRITONSERVER_BACKEND_DIR /nowhere
TRITON_TIMEOUT 0 nan inf
TRITON_START_TIMEOUT soon
TRITON_HANG_TIMEOUT 1
STOP_GRACE_PERIOD -1
FAILURE_LIMIT 0
FAILURE_WINDOW 0
TRITON_HTTP_PORT http
TRITON_GRPC_PORT 0
TRITON_METRICS_PORT 65536
TRITON_MAX_REQUESTS 0
TRITON_MAX_BODY_BYTES -1
TRITON_MANAGEMENT perhaps
LOG_FORMAT xml
OTEL_EXPORTER_OTLP_ENDPOINT collector:4318
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT http://
OTEL_EXPORTER_OTLP_PROTOCOL grpc
OTEL_SDK_DISABLED perhaps
CHAT_TEMPLATE /nowhere/template.jinja
OPENAI_PORT -1 65536
OPENAI_PROCESSES 0 65
OPENAI_MAX_REQUESTS 0
OPENAI_MAX_BODY_BYTES 8M
OPENAI_TIMEOUT 0
ROUTER_PROTOCOL sglang
KV_EVENTS 5557 tcp://host
"""
BAD = [
    *BAD_FOR_COG,
    *(("PROMPT_TEMPLATE", text) for text in ("no field", "{prompt} {", "{prompt} {name}")),
    *(("GENERATION_CONFIG", text) for text in ("off", "[]", '{"top_k": 0.5}', '{"temprature": 1}', "{")),
    *((name, text) for name, *texts in map(str.split, _BAD_WORDS.splitlines()) for text in texts),
]


@pytest.fixture(autouse=True)
def no_config_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_variable_sets_its_setting() -> None:
    for name, text, field, value in GOOD:
        assert getattr(load_settings({name: text}), field) == value, name
    for name, text, field, value in COG_GOOD:
        assert getattr(load_settings({name: text}).cog, field) == value, name
    assert {name for name, *_ in COG_GOOD} == {name for name, _ in BAD_FOR_COG} == set(COG_VARIABLES)


def test_the_defaults_are_valid_for_cog() -> None:
    defaults = CogSettings()
    texts = {name: getattr(defaults, field) for name, field in COG_VARIABLES.items()}
    given = {name: str(value) for name, value in texts.items() if value is not None}
    assert load_settings(given).cog == defaults


def test_two_ports_that_are_the_same_are_refused_unless_they_are_off() -> None:
    variables = ["PORT", *(name for name, field in VARIABLES.items() if field.endswith("_port"))]
    for one, other in itertools.combinations(variables, 2):
        with pytest.raises(InvalidSetting, match=f"{other} must be another port than {one}, but is 7000"):
            load_settings({one: "7000", other: "7000"})
    assert load_settings({"OPENAI_PORT": "0", "PORT": "9000"}).openai_port == 0


def test_every_path_is_known_as_one() -> None:
    given = {"TRITONSERVER_BACKEND_DIR": "/", "CHAT_TEMPLATE": __file__}
    settings = load_settings(given)
    fields = {name for name, field in VARIABLES.items() if isinstance(getattr(settings, field), Path)}
    others = {"COG_TRITON_CONFIG", "COG_TRITON_ENGINE_PYTHON", "COG_TRITON_SCRIPT", "DYNAMO_PYTHON"}
    assert (fields - set(PATH_VARIABLES), set(PATH_VARIABLES) - fields) == (set(), others)


def test_a_wrong_value_is_told_with_its_variable() -> None:
    for name, text in BAD:
        with pytest.raises(InvalidSetting, match=name) as raised:
            load_settings({name: text})
        assert repr(text)[:20] in str(raised.value)


def test_a_variable_set_to_nothing_is_as_if_unset() -> None:
    unset = load_settings({})
    assert (unset.stop_sequences, load_settings({"STOP_SEQUENCES": ""}).stop_sequences) == (None, "")
    for variable in set(VARIABLES) - {"STOP_SEQUENCES"}:
        assert load_settings({variable: ""}) == unset


def test_without_variables_the_defaults_of_cog_triton_hold() -> None:
    settings = load_settings({})
    assert settings.engine_dir == Path("/src/triton_model_repo/tensorrt_llm/1")
    assert settings.prompt_template == "{prompt}"
    assert settings.system_prompt == ""
    assert settings.triton_timeout_s == 120
    assert settings.triton_start_timeout_s == 300
    ports = (settings.triton_http_port, settings.triton_grpc_port, settings.triton_metrics_port)
    assert ports == (8000, 8001, 8002)


def test_the_api_has_a_process_for_every_four_processors() -> None:
    assert [default_processes(each) for each in (1, 7, 8, 16, 128)] == [1, 1, 2, 4, 4]


def test_variables_of_others_are_not_minded() -> None:
    assert load_settings({"PATH": "/bin", "TRITON_UNHEARD_OF": "1"}) == load_settings({})


def test_the_environment_wins_over_the_yaml_and_a_folder_or_a_tar_over_a_model(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("instantiate: {weights: from-yaml, system_prompt: yaml, prompt_template: 'Y {prompt}'}")

    def won(**environment: str) -> tuple[str | None, str, str]:
        settings = load_settings({"COG_TRITON_CONFIG": str(config), **environment})
        return settings.weights, settings.system_prompt, settings.prompt_template

    assert won() == ("from-yaml", "yaml", "Y {prompt}")
    own = {"COG_WEIGHTS": "w", "SYSTEM_PROMPT": "", "PROMPT_TEMPLATE": "E {prompt}"}
    assert won(**own) == ("w", "", "E {prompt}")
    assert won(ENGINE_DIR="/engine", COG_WEIGHTS="") == (None, "yaml", "Y {prompt}")
    assert load_settings({"MODEL_ID": "a/b"}).model_id == "a/b"
    assert load_settings({"MODEL_ID": "a/b", "ENGINE_DIR": "/e"}).model_id is None


def test_settings_do_not_change_and_take_no_unknown_field() -> None:
    settings = load_settings({})
    with pytest.raises(ValueError, match="frozen"):
        settings.end_id = 3
    with pytest.raises(ValueError, match="extra"):
        type(settings)(**settings.model_dump(), unheard_of=1)
