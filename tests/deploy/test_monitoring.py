"""Dashboard, rules and alerts ask for what a runner tells: a real Prometheus scrapes one and has answers."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from engine.machine.root import SOURCE_ROOT
from runner.observability.metrics import TIME_TO_FIRST_TOKEN
from tests.runner.paced_engine import TOKENS_PER_SECOND, make_paced_model
from tests.runner.servers import DEADLINE_S, HOST, CogUnderTest, free_ports, wait_until

DASHBOARD = SOURCE_ROOT / "deploy" / "grafana" / "cog-triton.json"
RULES = SOURCE_ROOT / "deploy" / "prometheus" / "cog-triton.rules.yml"
SCALED_OBJECT = SOURCE_ROOT / "deploy/kubernetes/components/autoscaling-keda/scaled-object.yaml"
ALERTS_TEST = Path(__file__).with_name("alerts.test.yml")
RATE_INTERVAL = "1m"
THRESHOLD = re.compile(r"\s+(?:==|>|<)\s+[\d.]+$")
NEEDS_GPU = "nv_gpu_"

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no prometheus (Debian, Ubuntu: apt-get install prometheus)",
)


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    document = json.loads(DASHBOARD.read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def expressions() -> list[tuple[str, str]]:
    """Return each query's place and text: without an alert's threshold, with values for variables."""
    asked = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    asked += [(str(rule.get("record") or rule["alert"]), THRESHOLD.sub("", rule["expr"])) for rule in rules()]
    for trigger in yaml.safe_load(SCALED_OBJECT.read_text())["spec"]["triggers"]:
        # Kubernetes adds the label.
        asked.append(("KEDA", trigger["metadata"]["query"].replace('{pod=~"cog-triton-.*"}', "")))
    variables = re.compile(r"\$(?:__(rate_interval)|job|instance)")
    return [
        (where, variables.sub(lambda found: RATE_INTERVAL if found[1] else ".+", expression))
        for where, expression in asked
    ]


class Prometheus:
    """Asked for what was at the end of the load: rates are of a minute, and the tests may come later."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._asked_s = 0.0

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=DEADLINE_S).status_code == 200
        except httpx.TransportError:
            return False

    def has_scraped(self, times: int, since_s: float) -> bool:
        """Everything is asked for as it was when this was asked last."""
        self._asked_s = time.time()
        passed_ms = max(1, int((self._asked_s - since_s) * 1000))
        return bool(self.ask(f"up == 1 and sum_over_time(up[{passed_ms}ms]) >= {times}"))

    def ask(self, expression: str) -> list[dict[str, Any]]:
        params = {"query": expression, "time": str(self._asked_s)}
        answer = httpx.get(f"{self.url}/api/v1/query", params=params, timeout=DEADLINE_S).json()
        assert answer["status"] == "success", answer
        return answer["data"]["result"]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """With our rules. It has scraped a runner under load for a few seconds."""
    folder, (port, openai_port) = tmp_path_factory.mktemp("prometheus"), free_ports(2)
    shutil.copy(RULES, folder)
    config = yaml.safe_load((SOURCE_ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"{HOST}:{openai_port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder}"]
    command += [f"--web.listen-address={HOST}:{port}", "--log.level=warn"]
    paced = make_paced_model(folder / "model", TOKENS_PER_SECOND)
    prometheus = Prometheus(f"http://{HOST}:{port}")
    with ExitStack() as exits:
        cog = CogUnderTest(paced, folder, OPENAI_HOST=HOST, OPENAI_PORT=str(openai_port))
        exits.callback(cog.close)
        log = exits.enter_context((folder / "log").open("wb"))
        process = exits.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        exits.callback(process.terminate)
        wait_until(prometheus.is_ready)
        begin_s = time.time()
        with ThreadPoolExecutor(8) as pool:
            while not prometheus.has_scraped(8, begin_s):
                list(pool.map(lambda _: put_under_load(cog), range(8)))
        end_s = time.time()
        wait_until(lambda: prometheus.has_scraped(2, end_s))
        yield prometheus


def put_under_load(cog: CogUnderTest) -> None:
    """Three of the outcomes."""
    assert cog.predict(prompt="What is machine learning?", max_tokens=20)["status"] == "succeeded"
    assert cog.predict(prompt=" ")["status"] == "failed"
    body = {"input": {"prompt": "hi", "max_tokens": 500}}
    with cog.client.stream(
        "POST", "/predictions", json=body, headers={"Accept": "text/event-stream"}
    ) as response:
        # Who leaves before the first text may be forgotten by Cog, and its place stays taken to the end.
        next(data for data in response.iter_bytes() if b"event: output" in data)


@pytest.mark.servers
def test_what_is_asked_has_an_answer(prometheus: Prometheus) -> None:
    """Numbers, and none below 0. A metric by another name has no answer."""
    for where, expression in expressions():
        result = prometheus.ask(expression)
        values = [float(each["value"][1]) for each in result]
        assert any(value >= 0 for value in values) or NEEDS_GPU in expression, (where, result)
        assert not any(value < 0 for value in values), (where, result)
    assert prometheus.ask("cog_triton_first_word_seconds_bucket") == []


@pytest.mark.servers
def test_quantiles_lie_where_the_paced_engine_puts_them(prometheus: Prometheus) -> None:
    asked = next(each for where, each in expressions() if where == "Inter-token latency")
    (median,) = prometheus.ask(asked)
    assert float(median["value"][1]) == pytest.approx(1 / TOKENS_PER_SECOND, rel=1)


@pytest.mark.servers
def test_prometheus_has_the_rules_and_none_of_them_fails(prometheus: Prometheus) -> None:
    groups = httpx.get(f"{prometheus.url}/api/v1/rules", timeout=DEADLINE_S).json()["data"]["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len(found) == len(rules())
    assert {rule["health"] for rule in found} == {"ok"}
    assert prometheus.ask("job:cog_triton_time_to_first_token_seconds:p95_5m")


def test_every_alert_comes_when_it_should_and_only_then(tmp_path: Path) -> None:
    for path in (RULES, ALERTS_TEST):
        shutil.copy(path, tmp_path)
    command = ["promtool", "test", "rules", ALERTS_TEST.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert set(re.findall(r'alertname="(\w+)"', ALERTS_TEST.read_text())) == alerts


def test_the_objective_of_the_first_token_is_a_line_at_the_alerts_limit_and_a_row_of_the_heatmap() -> None:
    (alert,) = [rule for rule in rules() if rule.get("alert") == "CogTritonSlowFirstToken"]
    limit_s = float(alert["expr"].rpartition(">")[2])
    by_title = {panel["title"]: panel for panel in panels()}
    defaults = by_title["Time to first token"]["fieldConfig"]["defaults"]
    assert defaults["thresholds"]["steps"][-1]["value"] == limit_s
    assert defaults["custom"]["thresholdsStyle"]["mode"] != "off"
    heatmap = by_title["Time to first token, all requests"]
    assert (heatmap["type"], heatmap["targets"][0]["format"]) == ("heatmap", "heatmap")
    assert f"{limit_s:g} s" in heatmap["description"]
    assert limit_s in TIME_TO_FIRST_TOKEN.bounds


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
