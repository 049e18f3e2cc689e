"""Parameters of tools for families that write each one by itself, as text or as JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from errors.requests import InvalidGuide
from runner.chat.families.syntax.schema_types import is_text_by
from runner.chat.families.tools import Tool
from runner.chat.guides.rules import SPACE, Rules, literal
from runner.engines.guides.schemas import keywords_with_effect

_SHARED = ("$defs", "definitions")
_OF_OBJECTS = {"type", "properties", "required", "additionalProperties", "propertyNames"}
_OF_TEXTS = {"type", "enum", "const", "minLength", "maxLength", "format"}


@dataclass(frozen=True)
class Parameter:
    name: str
    schema: dict[str, Any]
    """Schema with the definitions that it refers to."""
    is_required: bool
    place: str

    @property
    def is_text(self) -> bool:
        """True if the value is written as it is, and not as JSON."""
        return is_text_by(self.schema)


def place_of(tool: Tool) -> str:
    return f"the parameters of the tool {tool.name}"


def parameters_of(tool: Tool) -> list[Parameter]:
    """Return a tool's parameters. Raises E1105 for a schema that is more than its properties."""
    schema, place = tool.parameters, place_of(tool)
    _check(schema, "object", _OF_OBJECTS, place)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise _refused(place, "properties has to be an object, and required a list")
    if schema.get("type", "object") != "object":
        raise _refused(place, 'the type has to be "object"')
    shared = {key: schema[key] for key in _SHARED if key in schema}
    names = {each: None for each in required if isinstance(each, str)}
    unknown = [each for each in names if each not in properties]
    found = []
    for name, part in (*properties.items(), *((each, {"type": "string"}) for each in unknown)):
        if not isinstance(part, dict):
            part = {}
        if not name or not all(each.isalnum() or each in "_-." for each in name):
            raise _refused(place, f"the parameter {name!r} needs a name of letters, digits, _, - and .")
        found.append(Parameter(name, {**shared, **part}, name in names, f"{place} at #/properties/{name}"))
    return found


def text_value(rules: Rules, parameter: Parameter, before_end: str, end: str) -> str:
    """Return a text as it is, up to ``before_end`` and the marker ``end``. Raises E1105."""
    schema = parameter.schema
    _check(schema, "string", _OF_TEXTS, parameter.place)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    after = f"{literal(before_end)} {rules.marker(end)}" if before_end else rules.marker(end)
    if values is not None:
        texts = [each for each in values if isinstance(each, str)] if isinstance(values, list) else []
        if not texts or any(end in each for each in texts):
            raise _refused(parameter.place, f"its values have to be texts without {end}")
        return f"({' | '.join(map(literal, texts))}) {after}"
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if not isinstance(least, int) or not (most == "" or isinstance(most, int)):
        raise _refused(parameter.place, "minLength and maxLength have to be whole numbers")
    is_any = not least and most == ""
    return rules.text_before(before_end, end, None if is_any else f"/(?s:.{{{least},{most}}})/")


def in_order(parameters: list[Parameter], write: Callable[[Parameter], str]) -> str:
    """Return a rule for all required parameters, with others between them."""
    return " ".join(write(each) if each.is_required else f"({write(each)})?" for each in parameters)


def keywords(
    rules: Rules, parameters: list[Parameter], prefix: str, write: Callable[[Parameter], str]
) -> str:
    """Return the parameters in order, with commas between them."""
    after, first = "", ""
    for index, each in reversed(list(enumerate(parameters))):
        one = write(each)
        if each.is_required:
            first, after = f"{one} {after}", f'"," {SPACE} {one} {after}'
        else:
            first = f"{one} {after} | {first}" if first else f"({one})?"
            after = f'("," {SPACE} {one})? {after}'
        first = rules.add(f"{prefix}_first_{index}", first)
        after = rules.add(f"{prefix}_after_{index}", after)
    return first


def _check(schema: dict[str, Any], type_name: str, known: set[str], place: str) -> None:
    for key in keywords_with_effect(schema, type_name):
        if key not in known:
            raise _refused(place, f"{key} can't be enforced in the form of this model's calls; leave it out")


def _refused(place: str, reason: str) -> InvalidGuide:
    return InvalidGuide(guide_type="json_schema", reason=f"{place}: {reason}")
