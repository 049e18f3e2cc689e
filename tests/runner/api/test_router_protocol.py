"""What routers of vLLM ask of a server: prompts as token ids, facts of the server, metrics by their names."""

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runner.api.routers.metrics import router_families
from runner.api.routers.protocol import event_sources
from runner.engines.protocol.messages import Ready, Statistics
from runner.settings.settings import load_settings
from tests.runner.api.apis import API, CHAT_TEMPLATE
from tests.runner.paced_engine import MAX_SEQUENCE_LENGTH, make_paced_model
from tests.runner.servers import wait_until

pytestmark = pytest.mark.servers

CHAT = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
RENDERED = [
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3, "tools": TOOLS, "tool_choice": "none"}),
    # As llm-d's endpoint picker asks.
    (
        "/v1/chat/completions",
        {"model": "m", "messages": CHAT, "add_generation_prompt": True, "max_tokens": 1},
    ),
    ("/v1/responses", {"input": "Hello", "instructions": "Be brief.", "max_output_tokens": 3}),
    ("/v1/messages", {"messages": CHAT, "system": "Be brief.", "max_tokens": 3}),
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 3}),
]


@pytest.fixture(scope="module")
def router_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[API]:
    folder = tmp_path_factory.mktemp("routers")
    model = make_paced_model(folder / "model", 200, chat_template=CHAT_TEMPLATE)
    settings = {"ROUTER_PROTOCOL": "vllm", "OPENAI_MODELS": "m,other", "API_KEYS": "secret"}
    with TemporaryDirectory() as sockets:  # A socket's path is short.
        api = API(model, folder, **settings, KV_EVENTS=f"ipc://{sockets}/events")
        api.client.headers["Authorization"] = "Bearer secret"
        yield api
        api.close()


def values(text: str) -> dict[str, tuple[dict[str, str], float]]:
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {each.name: (each.labels, each.value) for each in samples if each.name.startswith("vllm:")}


@pytest.mark.parametrize(("path", "body"), RENDERED)
def test_a_rendered_prompt_is_what_the_engine_gets(router_api: API, path: str, body: dict[str, Any]) -> None:
    """The engine repeats its prompt."""
    rendered = router_api.post(f"{path}/render", **body).json()
    if path == "/v1/completions":
        (rendered,) = rendered
    ids = rendered["token_ids"]
    assert rendered["model"] == "m"
    answer = router_api.ask("/v1/completions", prompt=ids, max_tokens=len(ids))
    assert answer["usage"]["prompt_tokens"] == len(ids)
    usage = router_api.ask(path, **body)["usage"]
    if path == "/v1/messages":  # There it is without those that the cache had.
        usage["input_tokens"] += usage["cache_read_input_tokens"]
    assert usage.get("prompt_tokens", usage.get("input_tokens")) == len(ids)
    text: str = router_api.model.tokenizer.decode(ids, skip_special_tokens=False)
    assert answer["choices"][0]["text"] == text
    assert text.endswith("Once upon a time" if path == "/v1/completions" else "Hello<assistant>")


def test_each_prompt_of_a_completion_is_rendered(router_api: API) -> None:
    rendered = router_api.post("/v1/completions/render", prompt=["one", "two", "three"], model="other").json()
    assert [each["token_ids"] for each in rendered] == [
        router_api.model.ids(text) for text in ("one", "two", "three")
    ]
    (given,) = router_api.post("/v1/completions/render", prompt=[7, 8, 9]).json()
    assert given["token_ids"] == [7, 8, 9]


def test_what_the_endpoint_itself_refuses_is_refused(router_api: API) -> None:
    path = "/v1/chat/completions/render"
    assert router_api.refused(path, 404, messages=CHAT, model="absent")["code"] == "E1603"
    assert router_api.refused(path, 400, messages=CHAT, unknown_field=1)["code"] == "E1601"
    long = [7] * (MAX_SEQUENCE_LENGTH + 1)
    assert router_api.refused("/v1/completions/render", 400, prompt=long)["code"] == "E1002"
    assert router_api.client.post(path, json={}, headers={"Authorization": "Bearer x"}).status_code == 401


def test_a_server_tells_its_names_and_its_cache(router_api: API) -> None:
    answer = router_api.client.get("/server_info?config_format=json", headers={"Authorization": ""}).json()
    assert answer["vllm_config"]["model_config"] == {
        "model": "m",
        "served_model_name": ["m", "other"],
        "max_model_len": MAX_SEQUENCE_LENGTH,
    }
    assert answer["vllm_config"]["cache_config"] == {"block_size": 16, "num_gpu_blocks": 4096}
    events = answer["vllm_config"]["kv_events_config"]
    assert router_api.client.get("/kv_event_sources").json() == {"0": events}
    assert events.pop("endpoint").startswith("ipc://")
    assert events == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "replay_endpoint": None,
        "topic": "",
        "buffer_steps": 10_000,
        "hwm": 100_000,
    }


def test_requests_are_counted_under_the_names_that_routers_read(router_api: API) -> None:
    def metrics() -> dict[str, tuple[dict[str, str], float]]:
        return values(router_api.client.get("/metrics").text)

    before = metrics()["vllm:prefix_cache_queries_total"][1]
    with router_api.streaming("/v1/completions", prompt="Once upon", max_tokens=3000) as data:
        next(data)
        running = wait_until(lambda: (found := metrics())["vllm:num_requests_running"][1] == 1 and found)
    assert running["vllm:num_requests_running"][0] == {"model_name": "m", "engine": "0"}
    assert running["vllm:num_requests_waiting"][1] == 0
    wait_until(lambda: metrics()["vllm:num_requests_running"][1] == 0)
    num_tokens = len(router_api.model.ids("Once upon"))
    after = wait_until(lambda: (now := metrics()["vllm:prefix_cache_queries_total"][1]) > before and now)
    assert after == before + num_tokens


def test_tokens_that_the_cache_had_are_in_the_usage_and_in_the_metrics(router_api: API) -> None:
    def hits() -> float:
        return values(router_api.client.get("/metrics").text)["vllm:prefix_cache_hits_total"][1]

    before, ids = hits(), [*range(5, 105)]
    for found in (0, 96):
        usage = router_api.ask("/v1/completions", prompt=ids, max_tokens=2)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == found
    wait_until(lambda: hits() == before + 96)


def test_figures_of_the_cache_and_of_adapters_have_the_labels_that_routers_read() -> None:
    ready = Ready("vllm", 100, 100, 8, kv_block_tokens=16, num_kv_blocks=2048, max_running_adapters=2)
    statistics = Statistics(3, 5, 0.25, running_adapters=["a", "b"], waiting_adapters=["c"])
    families = router_families([], "m", ready, statistics)
    found = {sample.name: sample for family in families for sample in family.samples}
    assert found["vllm:cache_config_info"].labels == {
        "block_size": "16",
        "num_gpu_blocks": "2048",
        "engine": "0",
    }
    assert found["vllm:lora_requests_info"].labels == {
        "max_lora": "2",
        "running_lora_adapters": "a,b",
        "waiting_lora_adapters": "c",
    }
    assert found["vllm:kv_cache_usage_perc"].value == found["vllm:gpu_cache_usage_perc"].value == 0.25
    away = {sample.name for family in router_families([], "m", ready, None) for sample in family.samples}
    assert "vllm:num_requests_waiting" not in away
    assert "vllm:cache_config_info" in away


def test_replicas_publish_at_ports_that_follow_each_other() -> None:
    config = load_settings({"KV_EVENTS": "tcp://*:5557"}).kv_events_config
    assert config is not None
    sources = event_sources(config, 3)
    assert [each["endpoint"] for each in sources.values()] == [
        f"tcp://*:{port}" for port in (5557, 5558, 5559)
    ]
    assert {each["replay_endpoint"] for each in sources.values()} == {None}


def test_nothing_of_it_is_there_unless_it_is_switched_on(api: API) -> None:
    assert api.post("/v1/completions/render", prompt="Hello").status_code == 404
    assert api.client.get("/server_info").status_code == 404
    assert "vllm:" not in api.client.get("/metrics").text
    assert not [path for path in api.client.get("/openapi.json").json()["paths"] if "render" in path]


def test_it_is_described_where_it_is_offered(router_api: API) -> None:
    paths = router_api.client.get("/openapi.json").json()["paths"]
    render = [path for path in paths if path.endswith("/render")]
    assert {path.removesuffix("/render") for path in render} == {path for path, _ in RENDERED}
    assert all("security" in paths[path]["post"] for path in render)
    assert "/server_info" in paths
