"""What a guide costs is limited: to check, to compile, to follow, and to keep. Others don't wait for it."""

import json
import os
import queue
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="is in the engine environment")

from engine.machine.processes import name_of
from engine.machine.root import SOURCE_ROOT, own_environment
from errors.coded_error import CodedError
from errors.engines import GuideCheckFailed
from errors.requests import GuideFailed, InvalidGuide
from runner.engines.guides import check as check_module
from runner.engines.guides import compile as compile_module
from runner.engines.guides import follow as follow_module
from runner.engines.guides.check import PROCESS_NAME, Checker
from runner.engines.guides.compile import GuideCompiler
from runner.engines.guides.follow import Follower
from runner.engines.protocol.messages import Guide
from tests.runner.engines.guides.byte_tokenizer import save_byte_tokenizer

pytestmark = pytest.mark.engine_env

DEADLINE_S = 240.0
VOCAB_SIZE = 281
SMALL = Guide("regex", "a+")
PATTERNS = {"allOf": [{"pattern": f".*{letter}.{{9}}y.*"} for letter in "abcdefghijklmnopqrst"]}
ENDLESS = [
    PATTERNS,
    {"items": {**PATTERNS, "type": "string"}},
    {"allOf": [{"multipleOf": value} for value in (997, 991, 983)]},
    {"type": "integer", "multipleOf": 9_999_991},
]
FIELDS = [
    {"type": "string", "pattern": r"^[A-Za-z0-9\-\.]{1,64}$"},
    {"type": "string", "format": "date-time"},
    {"type": ["number", "null"]},
    {"enum": [f"code-{index}" for index in range(30)]},
]
ORDINARY = [
    {"properties": {f"optional_{index}": FIELDS[2] for index in range(250)}},
    {"properties": {f"p{index}": FIELDS[3] for index in range(150)}, "required": ["p7"]},
    {"enum": [f"ICD-{index:05d}" for index in range(3000)]},
    {"type": "array", "minItems": 10_000, "items": {"type": "string", "maxLength": 2000}},
    {
        "$ref": "#/$defs/r0",
        "$defs": {
            f"r{kind}": {
                "type": "object",
                "properties": {
                    "next": {"type": "array", "items": {"$ref": f"#/$defs/r{(kind + 1) % 20}"}},
                    **{f"field_{index}": FIELDS[index % 3] for index in range(12)},
                },
                "additionalProperties": False,
            }
            for kind in range(20)
        },
    },
]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GuideCompiler:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_byte_tokenizer(folder)
    return GuideCompiler(folder / "tokenizer.json")


class Submitted:
    """The results of guides, in the order of their ends."""

    def __init__(self, compiler: GuideCompiler) -> None:
        self._compiler = compiler
        self._ended: queue.Queue[tuple[Guide, Follower | CodedError | None]] = queue.Queue()

    def submit(self, guide: Guide, *, is_wanted: bool = True) -> None:
        self._compiler.submit(guide, lambda result: self._ended.put((guide, result)), lambda: is_wanted)

    def next(self) -> tuple[Guide, Follower | CodedError | None]:
        return self._ended.get(timeout=DEADLINE_S)


def compiled(compiler: GuideCompiler, guide: Guide) -> Follower | CodedError | None:
    submitted = Submitted(compiler)
    submitted.submit(guide)
    return submitted.next()[1]


def follow(follower: Follower, num_tokens: int) -> None:
    for _ in range(num_tokens):
        allowed, _ = follower.allowed(VOCAB_SIZE)
        follower.take(int(allowed.nonzero()[0][0]))


WRONG = [
    (Guide("json_schema", '{"type": "objekt"}'), "at #: Invalid type: objekt"),
    (Guide("json_schema", '{"properties": {"a": {"not": {}}}}'), r'at #/properties/a: keywords .* \["not"\]'),
    (Guide("json_schema", '{"type":'), "not JSON: .*line 1 column 9"),
    (Guide("json_schema", "[]"), "a schema must be a JSON object"),
    (
        Guide("json_schema", '{"type": "array", "items": {"pattern": "a("}}'),
        "#/items: at character 2: unclosed group",
    ),
    (Guide("json_schema", '{"$ref": "https://example.com/a.json"}'), "does not fetch"),
    (
        Guide("json_schema", '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'),
        "no output matches it",
    ),
    (Guide("regex", "a(b"), "at character 2: unclosed group"),
    (Guide("regex", "(?=a)b"), "look-around"),
    (Guide("regex", ""), "it is empty"),
    (Guide("regex", "a" * 1_000_000), "it has more than 16384 bytes; make it shorter"),
    (Guide("ebnf_grammar", "root ::= digits"), "Rule 'digits' not found"),
    (Guide("ebnf_grammar", "root ::= root"), "no output matches it"),
]
HOSTILE = [
    Guide("json_schema", "[" * 60_000),
    Guide("json_schema", '{"items":' * 7_000 + "{}" + "}" * 7_000),
    Guide(
        "json_schema",
        json.dumps({"anyOf": [{"properties": {f"p{i}": {}, f"q{i}": {}}} for i in range(1200)]}),
    ),
    Guide("regex", "(" * 16_000),
    Guide("regex", "a?" * 4_000),
    Guide("regex", "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"),
    Guide("regex", ".*a.{60}b.*c.{60}d"),
    Guide("regex", "(a|aa|aaa)*" * 1_000 + "b"),
    Guide("ebnf_grammar", "root ::= " + "(" * 16_000),
    Guide(
        "ebnf_grammar", "root ::= r0\nr700 ::= [x]\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(700))
    ),
    Guide("ebnf_grammar", 'root ::= root root root | "a" | ""'),
]


def check_error(compiler: GuideCompiler, guide: Guide, message: str) -> None:
    error = compiled(compiler, guide)
    assert isinstance(error, InvalidGuide)
    assert re.search(message, str(error)), error
    assert "\n" not in str(error)
    assert len(str(error)) < 600


@pytest.mark.parametrize(("guide", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_guide_is_an_error_that_says_what_and_where(
    compiler: GuideCompiler, guide: Guide, message: str
) -> None:
    check_error(compiler, guide, message)


@pytest.mark.parametrize("guide", HOSTILE, ids=lambda guide: guide.text[:12])
def test_a_hostile_guide_ends_by_an_answer_or_a_coded_error(compiler: GuideCompiler, guide: Guide) -> None:
    result = compiled(compiler, guide)
    if isinstance(result, Follower):
        with suppress(GuideFailed, IndexError):  # Where nothing can follow, no token is allowed.
            follow(result, 30)
    else:
        assert isinstance(result, InvalidGuide)


@pytest.mark.parametrize("schema", ENDLESS, ids=lambda schema: str(schema)[:20])
def test_a_schema_that_would_take_for_ever_is_an_error_that_says_what_to_do(
    compiler: GuideCompiler, schema: object
) -> None:
    message = "it takes more than 0.2 s or 64 MiB to compile; use fewer or smaller repetitions"
    check_error(compiler, Guide("json_schema", json.dumps(schema)), message)


@pytest.mark.parametrize("schema", ORDINARY, ids=lambda schema: str(schema)[:20])
def test_an_ordinary_schema_of_hundreds_of_lines_is_compiled(compiler: GuideCompiler, schema: object) -> None:
    assert isinstance(compiled(compiler, Guide("json_schema", json.dumps(schema))), Follower)


def test_a_small_guide_does_not_wait_for_large_ones(compiler: GuideCompiler) -> None:
    submitted = Submitted(compiler)
    large = [Guide("json_schema", json.dumps({**PATTERNS, "title": str(index)})) for index in range(3)]
    small = Guide("regex", "small")
    for guide in (*large, small):
        submitted.submit(guide)
    order = [submitted.next()[0] for _ in range(4)]
    assert order.index(small) < order.index(large[1])
    assert set(order) == {*large, small}


def test_the_guide_of_a_cancelled_request_is_not_compiled(
    compiler: GuideCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Guide] = []
    monkeypatch.setattr(Checker, "check", lambda self, guide, cpu_s: checked.append(guide))
    submitted = Submitted(compiler)
    guide = Guide("regex", "cancelled")
    submitted.submit(guide, is_wanted=False)
    assert submitted.next() == (guide, None)
    assert checked == []


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= (root root | root root root | "a" | "b" | root "c" root)*',
        'root ::= x{1,10000}\nx ::= y{1,10000}\ny ::= "a" | "b" x',
    ],
)
def test_an_output_whose_guide_takes_too_long_at_each_token_fails(
    compiler: GuideCompiler, grammar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "_FOLLOW_S", 0.02)
    monkeypatch.setattr(follow_module, "_FOLLOW_TOKEN_S", 0.0005)
    follower = compiled(compiler, Guide("ebnf_grammar", grammar))
    assert isinstance(follower, Follower)
    with pytest.raises(GuideFailed, match=r"takes more than 0\.5 ms for each token|too complex|other guides"):
        follow(follower, 500)


def test_a_single_mask_of_a_hostile_grammar_is_limited(compiler: GuideCompiler) -> None:
    """It takes 0.5 s otherwise, and all outputs of the engine wait for it."""
    names = range(400)
    rules = [f"r{each} ::= [a-z] | r{(each + 1) % 400} r{(each + 7) % 400}" for each in names]
    grammar = "\n".join([f"root ::= {' '.join(f'r{each}?' for each in names)}", *rules])
    check_error(compiler, Guide("ebnf_grammar", grammar), r"it is too complex \(parser error: Too many items")


def test_slow_masks_of_many_outputs_are_limited_together(
    compiler: GuideCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait for all the others in every step."""
    monkeypatch.setattr(compiler, "_slow_masks", follow_module.SlowMasks())  # Without those of other tests.
    monkeypatch.setattr(follow_module, "_SLOW_SHARE", 0)
    monkeypatch.setattr(follow_module, "_FOLLOW_TOKEN_S", 0.02)  # No mask here takes as long.
    slow = Guide("regex", "[ab]{9}slow")
    followers = [compiled(compiler, slow) for _ in range(20)]
    other = compiled(compiler, Guide("regex", "[ab]{9}quick"))
    errors = []
    for follower in followers:
        assert isinstance(follower, Follower)
        follower._compiled.slowest_mask_s = 0.05
        try:
            follower.allowed(VOCAB_SIZE)
            compiler._slow_masks.add(0.05)
        except GuideFailed as error:
            errors.append(str(error))
    assert len(errors) == 18
    assert "E1106" in errors[0]
    assert "it is slow, as are other guides" in errors[0]
    assert isinstance(other, Follower)
    follow(other, 5)


def test_guides_are_kept_up_to_a_size(compiler: GuideCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "_MAX_CACHED_BYTES", 20 << 20)
    for index in range(30):
        assert isinstance(compiled(compiler, Guide("regex", f"kept{index}")), Follower)
    assert 0 < sum(each.num_bytes for each in compiler._cache.values()) <= 20 << 20


def test_a_checking_process_that_was_killed_is_replaced() -> None:
    checker = Checker()
    assert checker.check(SMALL, 1.0) is not None
    checker._process.kill()
    checker._process.wait()
    assert checker.check(SMALL, 1.0) is not None


def test_a_checking_process_that_can_not_run_is_the_servers_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its environment lacks llguidance, for example, which the engine server found elsewhere."""
    (tmp_path / "llguidance.py").write_text("raise ImportError")
    environment = own_environment() | {"PYTHONPATH": f"{tmp_path}:{SOURCE_ROOT}"}
    monkeypatch.setattr(check_module, "own_environment", lambda: environment)
    with pytest.raises(GuideCheckFailed, match="can't check the regex \\(its process ended twice\\)"):
        Checker().check(SMALL, 1.0)


def test_a_checking_process_that_is_stopped_is_replaced_within_seconds() -> None:
    """Its supervisor does not end the engine server instead."""
    checker = Checker()
    assert checker.check(SMALL, 1.0) is not None
    first = checker._process.pid
    assert name_of(first).encode() == PROCESS_NAME
    os.kill(first, signal.SIGSTOP)
    start_s = time.monotonic()
    large = Guide("regex", "|".join(f"word{number}" for number in range(1_600)))  # Several writes to a pipe.
    assert checker.check(large, 60.0) is not None
    assert not Path(f"/proc/{first}").exists()
    assert time.monotonic() - start_s < DEADLINE_S


def test_a_guide_can_not_take_more_memory_than_its_limit(tmp_path: Path) -> None:
    """With any processor time: the limit of memory ends it."""
    assert Checker().check(Guide("json_schema", json.dumps(ENDLESS[3])), 60.0) is None
