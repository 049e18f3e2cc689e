"""A chat's form: its parts are followed as they are alone, and errors tell which part is wrong."""

import json
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="is in the engine environment")

from tokenizers import Tokenizer

from runner.engines.guides.compile import GuideCompiler
from runner.engines.guides.follow import Follower
from runner.engines.protocol.messages import ChatForm, Guide
from tests.runner.engines.guides.byte_tokenizer import END_ID, save_byte_tokenizer
from tests.runner.engines.guides.test_compile import PATTERNS, VOCAB_SIZE, check_error, compiled

pytestmark = pytest.mark.engine_env

MARKER = 279
GBNF = 'root ::= digits "start" [/"a-z]* # root start\ndigits ::= [0-9]+ | Foo\nFoo ::= "f" "\\"x"'
LARK = 'start: "a" FOO\nFOO: /[0-9]/i | "start"i // start'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def compiler(folder: Path) -> GuideCompiler:
    return GuideCompiler(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def form(part: Guide, rules: str = f"start: <[{MARKER}]> part_0 /!*/ part_1") -> Guide:
    return ChatForm(rules, [("the guide", part)] * 2).guide()


def follows(follower: object, tokens: list[int]) -> bool:
    """Return whether these tokens are allowed, one after the other, and then the end."""
    assert isinstance(follower, Follower), follower
    for token in tokens:
        allowed, _ = follower.allowed(VOCAB_SIZE)
        if not allowed[token]:
            return False
        follower.take(token)
    return follower.is_complete or follower.allowed(VOCAB_SIZE)[1]


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        (Guide("json"), '{"a": 1}', "1"),
        (Guide("json_schema", '{"type": "integer", "x-guidance": {"lenient": true}}'), "12", "a"),
        (Guide("regex", r"a/b\d+"), "a/b12", "a/b"),
        (Guide("regex", r"[/\"]{2}"), '/"', "/a"),
        (Guide("ebnf_grammar", GBNF), '12start/"abc', "12"),
        (Guide("ebnf_grammar", GBNF), 'f"xstart', 'F"xstart'),
        (Guide("ebnf_grammar", LARK), "aSTART", "start"),
    ],
)
def test_a_part_follows_its_own_guide(
    compiler: GuideCompiler, tokenizer: Tokenizer, part: Guide, good: str, bad: str
) -> None:
    guide = form(part)
    for text, is_good in ((f"{good}!!{good}", True), (f"{bad}!{good}", False), (f"{good}!{bad}", False)):
        tokens = [MARKER, *tokenizer.encode(text, add_special_tokens=False).ids]
        assert follows(compiled(compiler, guide), tokens) == is_good, text


def test_a_marker_is_its_token_and_no_text(compiler: GuideCompiler, tokenizer: Tokenizer) -> None:
    guide = form(Guide("regex", "x"))
    marker = tokenizer.id_to_token(MARKER)
    assert not follows(compiled(compiler, guide), [ord(marker[0]), MARKER])
    allowed, may_end = compiled(compiler, guide).allowed(VOCAB_SIZE)
    assert list(allowed.nonzero()[0]) == [MARKER]
    assert not may_end
    assert not allowed[END_ID]


WRONG = [
    (
        form(Guide("json_schema", '{"properties": {"a": {"not": {}}}}')),
        r"The json_schema can't guide the output: the guide: at #/properties/a: keywords .* not supported",
    ),
    (form(Guide("regex", "a(")), "The regex .*: the guide: at character 2: unclosed group"),
    (form(Guide("ebnf_grammar", "root ::= digits")), "the guide: .*Rule 'digits' not found"),
    (form(Guide("ebnf_grammar", 'start: "a"\n%ignore /b/')), "can't have % directives; leave them out"),
    (form(Guide("json_schema", json.dumps(PATTERNS))), "The chat_form .* takes more than 0.2 s or 64 MiB"),
    (form(Guide("regex", "a"), "start: nothing"), "The chat_form can't guide the output: "),
    (form(form(Guide("regex", "a"))), "can't guide"),
    (Guide("chat_form", "{"), "The chat_form can't guide the output: DecodeError"),
    (Guide("chat_form", "[" * 100_000), "The chat_form can't guide the output: "),
    (Guide("chat_form", " " * 200_000), "it has more than 131072 bytes; send fewer tools or shorter schemas"),
]


@pytest.mark.parametrize(("guide", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_part_is_an_error_that_says_whose(
    compiler: GuideCompiler, guide: Guide, message: str
) -> None:
    check_error(compiler, guide, message)
