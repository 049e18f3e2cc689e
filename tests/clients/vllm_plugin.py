"""A plugin of pytest that runs vLLM's own tests of its parsers against our families, in ``.venv``.

vLLM is not imported. Stand-ins for its parsers read with our families; other names of its are records. The
option names the file for the results: by test, whether its assertions hold. A test that asks for more than
the calls and the content of a whole answer (streams, vLLM's internals, models of the Hub) has no result.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

from runner.chat.families.family import Family
from runner.chat.families.glm import hunyuan_3
from runner.chat.families.recognition import FAMILIES
from runner.chat.families.tools import Tool, ToolUse
from tests.runner.chat.families.answers import decoder, message_of, read, tokenizer_with

_STAND_INS = ("vllm", "transformers", "torch", "xgrammar", "openai", "mistral_common", "partial_json_parser")
_OPTION = "--results"
_SPECIAL_TOKENS = ("<|message_sep|>", "</s>")
_OTHER_NAMES = {
    "hyv3": hunyuan_3(""),
    "granite4": FAMILIES["hermes"],
    "jamba": FAMILIES["hunyuan-a13b"],
    **dict.fromkeys(("ling3", "poolsidev1"), FAMILIES["glm"]),
    **dict.fromkeys(("nemotronv3", "qwen3", "step3p5"), FAMILIES["qwen3-coder"]),
}
_FAMILIES = {re.sub(r"\W", "", name): family for name, family in FAMILIES.items()} | _OTHER_NAMES


def _family(name: str) -> Family:
    """Return the family whose name a parser's name begins with."""
    name = re.sub("toolparser|engine|parser|model|moe|\\W|_", "", name.lower())
    beginnings = sorted(filter(name.startswith, _FAMILIES), key=len)
    if not beginnings:
        raise NotImplementedError(f"no family of ours is {name}")
    return _FAMILIES[beginnings[-1]]


class Record:
    """An object of vLLM's: it has the attributes that it was made with."""

    def __init__(self, *values: Any, **attributes: Any) -> None:
        self.__dict__.update({key: _record(value) for key, value in attributes.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and _plain(self) == _plain(other)

    __hash__ = None

    @classmethod
    def model_validate(cls, values: dict[str, Any]) -> Record:
        return cls(**values)

    def model_copy(self, update: dict[str, Any], **_: Any) -> Record:
        return type(self)(**{**self.__dict__, **update})


class FunctionCall(Record):
    name: str
    arguments: str


class ToolCall(Record):
    type = "function"


class Extracted(Record):
    pass


class Request(Record):
    tools = None
    tool_choice = "auto"


def _record(value: Any) -> Any:
    if isinstance(value, dict) and "function" in value:
        return Record(**value)
    return [_record(each) for each in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Return the compared parts: arguments as JSON, and no ids."""
    if isinstance(value, FunctionCall):
        try:
            return value.name, json.loads(value.arguments)
        except ValueError:
            return value.name, value.arguments
    if isinstance(value, Record):
        return {key: _plain(each) for key, each in value.__dict__.items() if key != "id"}
    return value


class Parser(Record):
    """A stand-in of one of vLLM's parsers."""

    num_read = 0

    def __init__(self, tokenizer: Any = None, tools: Any = None, **_: Any) -> None:
        self.model_tokenizer = tokenizer
        self._tools = tools

    def extract_tool_calls(self, model_output: str, request: Any = None) -> Record:
        tools = ToolUse(tuple(map(_tool, self._tools or getattr(request, "tools", None) or ())))
        tokenizer = tokenizer_with(_SPECIAL_TOKENS)
        made = decoder(_family(type(self).__name__), tokenizer, tools=tools)
        message = message_of(read(made, [tokenizer.encode(model_output).ids]))
        Parser.num_read += 1
        calls = [
            ToolCall(
                id=each.id or uuid.uuid4().hex,
                function=FunctionCall(name=each.name, arguments=each.arguments),
            )
            for each in message.calls
        ]
        return Extracted(tools_called=bool(calls), tool_calls=calls, content=message.content or None)


def _tool(tool: Any) -> Tool:
    function = getattr(tool, "function", tool)
    if isinstance(function, dict):
        function = Record(**function)
    return Tool(function.name, parameters=getattr(function, "parameters", None) or {})


class Manager:
    @staticmethod
    def get_tool_parser(name: str) -> type[Parser]:
        return type(name, (Parser,), {})


class Tokenizer(MagicMock):
    def get_vocab(self) -> dict[str, int]:
        return {}

    def encode(self, *_: Any, **__: Any) -> list[int]:
        raise NotImplementedError("streams are not compared")

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> Tokenizer:
        return cls()


_KNOWN = {
    "FunctionCall": FunctionCall,
    "ToolCall": ToolCall,
    "ChatCompletionRequest": Request,
    "ExtractedToolCallInformation": Extracted,
    "ToolParserManager": Manager,
    "get_tokenizer": Tokenizer,
    "AutoTokenizer": Tokenizer,
}


class StandIn(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _KNOWN:
            _KNOWN[name] = type(name, (Parser if name.endswith("Parser") else Record,), {})
        return _KNOWN[name]


class Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.partition(".")[0] in _STAND_INS else None

    def create_module(self, spec: ModuleSpec) -> StandIn:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Add the module's constants: markers, which tests make texts of."""
        source = Path(*module.__name__.split(".")).with_suffix(".py")
        for node in ast.parse(source.read_text()).body if source.is_file() else ():
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper():
                with suppress(Exception):
                    exec(ast.unparse(node), module.__dict__)


sys.meta_path.insert(0, Finder())
sys.modules.setdefault("regex", re)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_OPTION, type=Path)


class Results:
    def __init__(self) -> None:
        self.held: dict[str, bool] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Iterator[None]:
        num_read = Parser.num_read
        outcome: Any = yield
        error = outcome.excinfo and outcome.excinfo[1]
        is_about_answers = error is None or isinstance(error, AssertionError)
        if Parser.num_read > num_read and is_about_answers:
            self.held[pyfuncitem.nodeid] = error is None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Results(), "results")


def pytest_unconfigure(config: pytest.Config) -> None:
    results: Any = config.pluginmanager.get_plugin("results")
    config.getoption(_OPTION).write_text(json.dumps(results.held))
