"""How the runner reads a model's calls and reasoning, by the chat template in a folder of its files."""

from pathlib import Path

from tokenizers import Tokenizer

from errors.coded_error import CodedError
from runner.chat.families.recognition import recognize
from runner.chat.template import load_chat_template

CHAT_FILES = ("tokenizer*.json", "chat_template*", "special_tokens_map.json", "additional_chat_templates/*")
_TOKENIZER = "tokenizer.json"


def family_line(folder: Path) -> str | None:
    """Describe the model's family in one line; None for a model without a chat template."""
    if not (folder / _TOKENIZER).is_file():
        return None
    try:
        chat = load_chat_template(folder, None)
        found = recognize(None, chat, Tokenizer.from_file(str(folder / _TOKENIZER)))
    except CodedError as exc:
        return f"{'chat':<12}{exc}"
    except Exception as exc:  # noqa: BLE001 - tokenizers raises bare Exception
        return f"{'chat':<12}{_TOKENIZER} can't be loaded: {exc}"
    if found.warning:
        return f"{'chat':<12}{found.warning}"
    if not chat.exists:
        return None
    if found.family is None:
        told = "model family unknown: tool calls and reasoning stay in the text"
    else:
        told = f"tool calls and reasoning: {found.family.name}"
    return f"{'chat':<12}{told} (docs/families.md)"
