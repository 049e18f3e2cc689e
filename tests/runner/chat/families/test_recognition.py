"""A model's family is recognized from its chat template and its tokens, or named by a setting."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from errors.settings import InvalidSetting
from runner.chat.families.recognition import FAMILIES, find_family
from runner.service import Service
from runner.settings.settings import load_settings
from tests.runner.chat.families.answers import tokenizer_with

LLAMA_TOKENS = ("<|python_tag|>", "<|eot_id|>")
MODELS = {
    "gpt-oss": ("<|start|>{{ role }}<|channel|>final<|message|>", ()),
    "kimi-k2": ("<|tool_calls_section_begin|> <think>", ()),
    "deepseek-v3": ("<｜Assistant｜><｜tool▁calls▁begin｜>function\n```json", ()),
    "deepseek-v3.1": ("<｜Assistant｜><think>", ("<｜tool▁calls▁begin｜>",)),
    "deepseek-v3.2": ("<｜Assistant｜><｜DSML｜function_calls>", ()),
    "deepseek-v4": ("<｜Assistant｜><｜DSML｜tool_calls> <think>", ("｜DSML｜",)),
    "mistral": ("[INST] {{ tools }} [TOOL_CALLS]", ("[TOOL_CALLS]", "[ARGS]")),
    "mistral-list": ("[AVAILABLE_TOOLS] [TOOL_CALLS]", ("[TOOL_CALLS]",)),
    "command-r": ("<|START_ACTION|> tool_name", ()),
    "command-r-2024": ("<|START_OF_TURN_TOKEN|> the `directly-answer` tool ```json", ()),
    "glm": ("<tool_call>{name}<arg_key>", ("<tool_call>",)),
    "qwen3-coder": ("<tool_call>\n<function=x>\n<parameter=y>", ("<tool_call>",)),
    "llama4": ("<|header_start|> {{ tools }}", ("<|python_start|>",)),
    "phi4": ("<|tool|>", ("<|/tool_call|>",)),
    "granite-3.2": ("<|start_of_role|> Here is my thought process: ", ("<|tool_call|>",)),
    "granite": ("<|start_of_role|> {{ tools }}", ("<|tool_call|>",)),
    "hermes": ("<tool_call></tool_call> <think>", LLAMA_TOKENS),
    "llama3": ("{{ tools }} <|eot_id|>", LLAMA_TOKENS),
    "thinking": ("<think>", ()),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_family_is_recognized(name: str) -> None:
    template, tokens = MODELS[name]
    family = find_family(None, template, tokenizer_with(tokens))
    assert family is FAMILIES[name]
    assert MODELS.keys() | {"generic"} == FAMILIES.keys()


def test_other_models_have_none() -> None:
    assert find_family(None, "{{ bos_token }} {{ tools }}", tokenizer_with()) is None
    assert find_family(None, "", tokenizer_with(LLAMA_TOKENS)) is None


def test_a_setting_names_the_family_or_turns_it_off() -> None:
    assert find_family("glm", "<tool_call>", tokenizer_with()) is FAMILIES["glm"]
    assert find_family("none", "<tool_call>", tokenizer_with()) is None
    with pytest.raises(InvalidSetting, match=r"CHAT_FAMILY.*hermes.*qwen4"):
        find_family("qwen4", "", tokenizer_with())


def test_an_unknown_family_is_refused_before_anything_starts(tmp_path: Path) -> None:
    service = Service(load_settings({"HOME": str(tmp_path), "CHAT_FAMILY": "qwen4"}))
    with pytest.raises(InvalidSetting, match="CHAT_FAMILY"):
        asyncio.run(service.open())
