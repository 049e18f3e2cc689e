"""Generated parts of docs: ``python -m tools.readme`` writes them.

A part stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``.
"""

import inspect
import os
import re
import typing
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from cli.main import make_parser
from engine.machine.root import SOURCE_ROOT
from errors import markdown_table
from runner.observability.metrics import ENGINE_METRICS, METRICS, PHASE_SECONDS
from runner.run import Runner
from runner.settings.cog_settings import COG_VARIABLES, CogSettings
from runner.settings.settings import VARIABLES, Settings
from tools.generated import write

ERRORS = SOURCE_ROOT / "docs" / "errors.md"
_HELP_WIDTH = "100"


def help_text() -> str:
    """Return ``cog-triton --help`` and the help of each command, as on a terminal of 100 columns."""
    os.environ["COLUMNS"] = _HELP_WIDTH
    parser, commands = make_parser()
    return "\n\n".join(
        f"## {each.prog}\n\n```text\n{each.format_help().strip()}\n```" for each in (parser, *commands)
    )


def input_table() -> str:
    rows = ["| input | type | default | limits | meaning |", "| --- | --- | --- | --- | --- |"]
    hints = typing.get_type_hints(Runner.run)
    for name, parameter in inspect.signature(Runner.run).parameters.items():
        if name == "self":
            continue
        field = parameter.default
        bounds = ((">=", field.ge), ("<=", field.le))
        limits = ", ".join(f"{sign} {value}" for sign, value in bounds if value is not None)
        default = "" if field.default is None else f"`{field.default}`"
        kind = _type_name(hints[name])
        rows.append(f"| `{name}` | {kind} | {default} | {limits} | {field.description} |")
    return "\n".join(rows)


def _type_name(hint: object) -> str:
    inner = [each for each in typing.get_args(hint) if each is not type(None)]
    return str(getattr(inner[0] if inner else hint, "__name__", hint))


def settings_table(model: type[BaseModel], variables: Mapping[str, str]) -> str:
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for variable, name in variables.items():
        field = model.model_fields[name]
        shown = "" if field.is_required() or field.default in (None, "", (), {}) else f"`{field.default}`"
        rows.append(f"| `{variable}` | {shown} | {field.description} |")
    return "\n".join(rows)


def metrics_table() -> str:
    """List the runner's own metrics, and after them the engine server's."""
    rows = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    families = [(each, ("api", *each.labels)) for each in METRICS]
    families += [(each, each.labels) for each in ENGINE_METRICS if each.name != PHASE_SECONDS]
    for family, labels in families:
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{family.name}` | {family.kind} | {shown} | {family.meaning} |")
    return "\n".join(rows)


PARTS: dict[Path, dict[str, Callable[[], str]]] = {
    ERRORS: {"errors": markdown_table},
    SOURCE_ROOT / "docs" / "inputs.md": {"inputs": input_table},
    SOURCE_ROOT / "docs" / "cli.md": {"help": help_text},
    SOURCE_ROOT / "docs" / "settings.md": {
        "settings": partial(settings_table, Settings, VARIABLES),
        "cog-settings": partial(settings_table, CogSettings, COG_VARIABLES),
    },
    SOURCE_ROOT / "docs" / "observability.md": {"metrics": metrics_table},
}
"""Functions that write each document's parts."""


def with_parts(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """Renew every generated part of ``text``; a part without its markers is a KeyError."""
    for name, make in parts.items():
        pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        if not pattern.search(text):
            raise KeyError(f"no markers for {name}")
        part = make() + "\n"
        text = pattern.sub(lambda match, part=part: match[1] + part + match[2], text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    write({path: with_parts(path.read_text(), parts) for path, parts in PARTS.items()})
