"""perf/peers: our servers on paced engines, its prompts and its refusals. vLLM's own servers need vLLM."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.machine.root import SOURCE_ROOT
from errors.requests import InvalidInput
from perf.__main__ import main
from perf.engines import paced_engine
from perf.load.generator import Run
from perf.load.response import Response
from perf.load.summary import summarize
from perf.peers.engine import Engine, standin_engine
from perf.peers.measure import Row
from perf.peers.report import report
from perf.peers.requests import Prompts, posting
from perf.peers.servers import Endpoint
from perf.peers.workloads import CAPACITY, WORKLOADS, Prompt, Words, Workload, parse_workloads
from perf.processes import CORE
from tests.perf.load.records import record

TOKENIZER = SOURCE_ROOT / "builder" / "examples" / "tiny" / "model" / "tokenizer.json"


def cells(text: str, server: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {server} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.long
@pytest.mark.servers
def test_our_servers_are_compared_on_two_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = paced_engine(tmp_path, 50), paced_engine(tmp_path, 200)
    arguments = ["--engine", f"slow={slow}", "--engine", f"fast={fast}", "--work", str(tmp_path / "work")]
    arguments += ["--servers", "cog-events", "cog-json", "slot", "api-1", "--workloads", "4x20x16"]
    assert main(["peers", *arguments, "--rounds", "1", "--result", str(tmp_path / "rows.json")]) == 0
    printed = capsys.readouterr().out
    for server in ("cog-events", "cog-json", "slot", "api-1"):
        for name in ("slow", "fast"):
            found = cells(printed, f"{name}/{server}")
            assert float(found[1]) > 0
            assert found[-3] == "0"  # Not served.
            assert (found[3] == "-") is (server == "cog-json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 8
    assert all(row["cpu_s"] and row["summary"]["output_tokens"] == 16 * 16 for row in rows)
    few = ["--engine", str(fast), "--servers", "api-1", "--workloads", "4x20x16", "--rounds", "9"]
    assert main(["peers", *few, "--limit-s", "0"]) == 0
    assert "; 1 rounds begun" in capsys.readouterr().out


ENGINE = Engine(Path(), "vllm", "", Path(), vocab_size=4)
OURS = Endpoint("slot", "http://x", 0, ENGINE)


@pytest.mark.parametrize(
    ("ids", "error"),
    [([3, 0], ""), ([3, 1], "another text than the known one"), ([3], "1 tokens instead of 2")],
)
def test_an_answer_of_ours_must_be_the_known_one(ids: list[int], error: str) -> None:
    target = Prompts(OURS, [Prompt("", [9, 2], 2)], Tokenizer.from_file(str(TOKENIZER)))
    body = json.dumps({"output_ids": ids}).encode()
    response = Response(200, {}, [(1.0, b"data: " + body + b"\n\n")])
    target._index_by_response[id(response)] = 0
    answer = target.read([response])
    assert (answer.outcome, answer.error) == ("failed" if error else "completed", error)


def test_the_answers_of_a_paced_engine_are_its_prompts() -> None:
    assert Engine(Path(), "paced", "", Path()).answer([5, 6], 3) == [5, 6, 5]
    assert Engine(Path(), "transformers", "", Path()).answer([5, 6], 3) is None


def row(server: str, number: int, tokens: int, front_s: float = 1.0) -> Row:
    records = [record(0, 1, output_s=(0.1, 0.2, 0.1 * (number + 3)), tokens=tokens)]
    summary = summarize(Run([*records, record(0, 1, outcome="failed")], 0.1))
    return Row("256", server, number, summary, {CORE[0]: 1.0, "API server": front_s}, 1 << 20)


ROWS = [
    *(row("a", number, tokens) for number, tokens in enumerate((1000, 500, 2000))),
    *(row("b", number, tokens, front_s=2.0) for number, tokens in enumerate((900, 450, 200))),
    row("b", 3, 1),
]


def test_a_server_is_compared_with_the_reference_within_each_round() -> None:
    *_, speed, front = cells(report(ROWS, "a"), "b")
    assert (speed, front) == ("0.90", "2.22")


def test_prompts_have_the_lengths_asked_for_and_share_their_beginning() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    workload = Workload(1, 1, (40, 60), (3, 9), shared_tokens=20)
    found = Words(tokenizer).prompts(workload, 50, "seed")
    assert all(40 <= len(each.ids) <= 60 for each in found)
    assert all(3 <= each.output_tokens <= 9 for each in found)
    assert len({tuple(each.ids[:20]) for each in found}) == 1
    assert len({tuple(each.ids) for each in found}) == 50
    assert found == Words(tokenizer).prompts(workload, 50, "seed")
    assert all(tokenizer.decode(each.ids) == each.text for each in found)
    others = Words(tokenizer).prompts(workload, 50, "seed", words="another server")
    assert [(len(each.ids), each.output_tokens) for each in others] == [
        (len(each.ids), each.output_tokens) for each in found
    ]
    assert not {each.text for each in found} & {each.text for each in others}


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_request_for_a_whole_answer_asks_for_no_stream(is_streaming: bool) -> None:
    prompt = Prompt("hi", [2], 3)
    endpoints = (OURS, OURS._replace(kind="openai"))
    bodies = [json.loads(posting(each, prompt, is_streaming=is_streaming).request.body) for each in endpoints]
    assert [bodies[0]["streaming"], bodies[1].get("stream", False)] == [is_streaming] * 2


def test_workloads_are_named_or_given_and_their_capacity_comes_first() -> None:
    assert [*parse_workloads(["32", "mixed-65"], None)] == [CAPACITY, "32", "mixed-65"]
    assert parse_workloads(["4x8x16"], None) == {"4x8x16": Workload(4, 16, (8, 8), (16, 16))}


def test_the_standin_engine_fits_every_workload_but_those_for_a_gpu(tmp_path: Path) -> None:
    engine = standin_engine("python3", tmp_path)
    parse_workloads([name for name in WORKLOADS if name != "prefix-10k"], engine.arguments["max_model_len"])
    with pytest.raises(InvalidInput, match="at most 1024 tokens"):
        parse_workloads(["32", "prefix-10k"], engine.arguments["max_model_len"])
    assert engine.answer([7], 2) == [8, 9]
    for step_s in (0.04, 0.0):
        engine.set_step(step_s)
        assert float(engine.step_file.read_bytes()[:16]) == step_s


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--rounds", "0"], "rounds must be at least 1"),
        (["--result", "/nowhere/x.json"], "result must be a file in a folder that exists"),
        (["--engine-python", "/nowhere/python"], "engine-python must be the Python of an environment"),
        (["--workloads", "0x8x8"], "workloads must be some of 32, 256"),
        (["--engine", "a="], "engine must be"),
        (["--arguments", "[1]"], "arguments must be a JSON object"),
        (["--arguments", '{"seed": 1}', "--engine", "x"], "arguments must be absent with --engine"),
        (["--model", "tiny", "--engine", "x"], "model must be absent with --engine"),
        (["--engine", "a/b=x"], "engine must be"),
        (["--servers", "cog-events", "--workloads", "256-whole"], "of streams for cog-events alone"),
        (["--limit-s", "nan"], "limit-s must be at least 0"),
        (["--work", __file__], "work must be a folder"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["peers", *options]) == 2
    assert named in capsys.readouterr().err


def test_servers_of_vllm_alone_refuse_an_engine_of_another_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["peers", "--engine", str(paced_engine(tmp_path, 50)), "--servers", "vllm-1"]
    assert main(options) == 2
    assert "servers must be able to serve the engine" in capsys.readouterr().err
    assert main([*options, "cog-events", "--workloads", "256-whole"]) == 2
    assert "of streams for cog-events alone" in capsys.readouterr().err
