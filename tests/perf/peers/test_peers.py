"""perf/peers: its arithmetic, its prompts and its refusals. The servers themselves need vLLM."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.machine.root import SOURCE_ROOT
from errors.requests import InvalidInput
from perf.__main__ import main
from perf.load.plan import Plan, arrivals
from perf.peers.comparison import Comparison, check_lengths, with_capacity
from perf.peers.engine import Engine, standin_engine
from perf.peers.measure import Row
from perf.peers.report import report
from perf.peers.servers import Endpoint
from perf.peers.triton_vllm import GENERATE, GenerateTarget
from perf.peers.workloads import WORKLOADS, Prompt, Prompts, Workload
from perf.processes import CORE
from perf.prove_gpu.client import posting

TOKENIZER = SOURCE_ROOT / "builder" / "examples" / "tiny" / "model" / "tokenizer.json"


def row(server: str, number: int, speed: float, front_s: float = 1.0, core_s: float = 1.0) -> Row:
    return Row(
        workload="256",
        server=server,
        round=number,
        tokens_per_second=speed,
        requests_per_second=2.0,
        first_token_ms=(1.0, 2.0, 30.0 * (number + 1)),
        gap_ms=None,
        events_per_token=0.5,
        tokens=1000,
        completed=4,
        not_served=1,
        cpu_s={CORE[0]: core_s, "API server": front_s},
        client_cpu_s=0.1,
        memory_bytes=1 << 20,
        errors=[],
        warnings=[],
    )


def cells(text: str, server: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {server} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


ROWS = [
    *(row("a", number, speed) for number, speed in enumerate((100, 50, 200))),
    *(row("b", number, speed, front_s=2.0) for number, speed in enumerate((90, 45, 20))),
]


def test_a_server_is_compared_with_the_reference_within_each_round() -> None:
    *_, speed, front = cells(report(ROWS, "a"), "b")
    assert (speed, front) == ("0.90", "2.00")


def test_processor_time_is_told_with_and_without_the_core() -> None:
    b = cells(report(ROWS, "a"), "b")
    # Per 1,000 tokens and per request.
    assert b[6:10] == ["3.000", "2.000", "750.00", "500.00"]


def test_percentiles_are_medians_of_the_rounds_and_a_document_has_none() -> None:
    b = cells(report(ROWS, "a"), "b")
    assert b[3:5] == ["1/2/60", "-"]
    assert b[11] == "3"  # Not served, in all rounds.


def test_each_workload_has_a_table() -> None:
    text = report([*ROWS, Row(**{**vars(ROWS[0]), "workload": "starts"})], "a")
    assert [line for line in text.splitlines() if line.startswith("**")] == ["**256**", "**starts**"]


def test_prompts_have_the_lengths_asked_for_and_share_their_beginning() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    workload = Workload(1, 1, (40, 60), (3, 9), shared_tokens=20)
    found = list(Prompts(tokenizer).of(workload, 50, "seed"))
    assert all(40 <= len(each.ids) <= 60 for each in found)
    assert all(3 <= each.output_tokens <= 9 for each in found)
    assert len({tuple(each.ids[:20]) for each in found}) == 1
    assert len({tuple(each.ids) for each in found}) == 50
    assert found == list(Prompts(tokenizer).of(workload, 50, "seed"))
    assert all(tokenizer.decode(each.ids) == each.text for each in found)


def test_servers_get_other_words_in_the_same_lengths_at_the_same_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, list[tuple[list[Prompt], list[float]]]] = {"slot": [], "vllm-1": []}

    def measured(
        name: str,
        server: str,
        number: int,
        endpoint: Endpoint,
        prompts: list[Prompt],
        plan: Plan,
        *,
        is_whole: bool,
    ) -> Row:
        assert not is_whole
        sent[server].append((prompts, list(arrivals(plan)) if plan.unit == "rps" else []))
        return row(server, number, 1.0)

    monkeypatch.setattr("perf.peers.comparison.measure", measured)
    for name in ("mixed", "mixed-65"):
        monkeypatch.setitem(WORKLOADS, name, replace(WORKLOADS[name], requests=20))
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    comparison = Comparison(
        {name: Endpoint("slot", "", 0) for name in sent}, Engine(tmp_path, "", tmp_path), "0"
    )
    for number in range(2):
        assert len(list(comparison.round(number, ["mixed", "mixed-65"]))) == 4
    for (ours, our_times), (theirs, their_times) in zip(*sent.values(), strict=True):
        assert [(len(each.ids), each.output_tokens) for each in ours] == [
            (len(each.ids), each.output_tokens) for each in theirs
        ]
        assert our_times == their_times
        assert not {tuple(each.ids) for each in ours} & {tuple(each.ids) for each in theirs}
    first, _, second, _ = ([len(each.ids) for each in prompts] for prompts, _ in sent["slot"])
    assert first != second


@pytest.mark.parametrize(("name", "without"), [("256-paced", set()), ("256-whole", {"sse"})])
def test_whole_answers_are_asked_of_the_servers_that_have_them(
    name: str, without: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, bool] = {}

    def measured(name: str, server: str, number: int, *_: object, is_whole: bool) -> Row:
        asked[server] = is_whole
        return row(server, number, 1.0)

    monkeypatch.setattr("perf.peers.comparison.measure", measured)
    monkeypatch.setitem(WORKLOADS, name, replace(WORKLOADS[name], requests=1))
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    endpoints = {kind: Endpoint(kind, "", 0) for kind in ("slot", "json", "sse", "openai", GENERATE)}
    for _ in Comparison(endpoints, Engine(tmp_path, "", tmp_path), "0").round(0, [name]):
        pass
    assert asked == dict.fromkeys(endpoints.keys() - without, bool(without))


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_request_for_a_whole_answer_asks_for_no_stream(is_streaming: bool) -> None:
    slot = posting("slot", "", [5], 3, is_streaming=is_streaming)
    openai = posting("openai", "", "hi", 3, is_streaming=is_streaming)
    triton_vllm = GenerateTarget("", "hi", 3, is_streaming=is_streaming)
    bodies = [json.loads(each.request.body) for each in (slot, openai, triton_vllm)]
    asked = [bodies[0]["streaming"], bodies[1].get("stream", False), bodies[2]["parameters"]["stream"]]
    assert asked == [is_streaming] * 3


def test_a_share_of_the_capacity_needs_the_capacity_first() -> None:
    assert with_capacity(["32", "mixed-65"]) == ["mixed", "32", "mixed-65"]
    assert with_capacity(["mixed-80", "32", "mixed"]) == ["mixed", "mixed-80", "32"]
    assert with_capacity(["32", "256"]) == ["32", "256"]


def test_the_standin_engine_fits_every_workload_but_those_for_a_gpu(tmp_path: Path) -> None:
    engine = standin_engine("python3", tmp_path)
    check_lengths([name for name in WORKLOADS if name != "prefix-10k"], engine)
    with pytest.raises(InvalidInput, match="at most 1024 tokens"):
        check_lengths(["32", "prefix-10k"], engine)
    assert engine.step_file is not None
    for step_s in (0.04, 0.0):
        engine.set_step(step_s)
        assert float(engine.step_file.read_bytes()[:16]) == step_s
    assert json.loads((engine.folder / "engine_args.json").read_text()) == engine.arguments


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--servers", "api-0"], "servers must be some of slot, triton-front"),
        (["--servers", "slot", "slot"], "servers must be each only once"),
        (["--rounds", "0"], "rounds must be at least 1"),
        (["--result", "/nowhere/x.json"], "result must be a file in a folder that exists"),
        (["--engine-python", "/nowhere/python"], "engine-python must be the Python of an environment"),
        (["--servers", "triton-vllm"], "vllm-backend must be a checkout of https://github.com/triton-inf"),
        (
            ["--servers", "triton-vllm", "--vllm-backend", "/nowhere"],
            "vllm-backend must be a checkout of https://github.com/triton-inference-server/vllm_backend",
        ),
    ],
)
def test_a_wrong_option_is_one_sentence(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["peers", *options]) == 2
    assert capsys.readouterr().err.startswith(f"{InvalidInput.code} InvalidInput: {named}")
