"""Which family a model is of: the first whose signs are in its chat template or its tokenizer."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from errors.settings import InvalidSetting
from runner.chat.families.bare_json import GENERIC, LLAMA3, THINKING
from runner.chat.families.deepseek import DEEPSEEK_V3, DEEPSEEK_V4, DEEPSEEK_V31, DEEPSEEK_V32
from runner.chat.families.family import Family
from runner.chat.families.glm import GLM
from runner.chat.families.harmony import GPT_OSS
from runner.chat.families.json_families import COMMAND_R, COMMAND_R_2024, GRANITE, GRANITE_32, HERMES, PHI4
from runner.chat.families.kimi import KIMI_K2
from runner.chat.families.llama4 import LLAMA4
from runner.chat.families.mistral import MISTRAL, MISTRAL_LIST
from runner.chat.families.qwen3_coder import QWEN3_CODER

NO_FAMILY = "none"

_SIGNS: Sequence[tuple[Family, tuple[str, ...]]] = (
    (GPT_OSS, ("<|channel|>", "<|message|>")),
    (KIMI_K2, ("<|tool_calls_section_begin|>",)),
    (DEEPSEEK_V32, ("｜DSML｜", "function_calls")),
    (DEEPSEEK_V4, ("｜DSML｜",)),
    (DEEPSEEK_V3, ("<｜tool▁calls▁begin｜>", "```json")),
    (DEEPSEEK_V31, ("<｜tool▁calls▁begin｜>", "<｜Assistant｜>")),
    (MISTRAL, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL_LIST, ("[TOOL_CALLS]",)),
    (COMMAND_R, ("<|START_ACTION|>",)),
    (COMMAND_R_2024, ("<|START_OF_TURN_TOKEN|>", "directly-answer")),
    (GLM, ("<arg_key>",)),
    (QWEN3_CODER, ("<function=", "<parameter=")),
    (LLAMA4, ("<|header_start|>", "<|python_start|>")),
    (PHI4, ("<|/tool_call|>",)),
    (PHI4, ("functools[",)),
    (PHI4, ("<|im_sep|>",)),
    (GRANITE_32, ("<|start_of_role|>", "Here is my thought process:")),
    (HERMES, ("<|start_of_role|>", "</tool_call>")),
    (GRANITE, ("<|start_of_role|>", "<|tool_call|>")),
    (HERMES, ("<tool_call>",)),
    (LLAMA3, ("<|python_tag|>", "tools")),
    (THINKING, ("<think>",)),
)
"""In the order of checks. All signs of a row have to be in the template, or be tokens of the tokenizer."""

FAMILIES = {family.name: family for family, _ in (*_SIGNS, (GENERIC, ()))}


def check_family(name: str | None) -> None:
    """Raises E1006 for an unknown name."""
    if name not in (None, NO_FAMILY, *FAMILIES):
        expected = f"{', '.join(FAMILIES)} or {NO_FAMILY}"
        raise InvalidSetting(name="CHAT_FAMILY", expected=expected, value=name)


def find_family(name: str | None, template: str, tokenizer: Tokenizer) -> Family | None:
    """The family ``name``, or else the one that is recognized. Raises E1006 for an unknown name."""
    check_family(name)
    if name is not None:
        return FAMILIES.get(name)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for family, signs in _SIGNS:
        if template and all(sign in template or sign in added for sign in signs):
            return family
    return None
