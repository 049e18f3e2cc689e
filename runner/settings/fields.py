"""Environment variables as fields of pydantic models: their types, and E1006 for an invalid value."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, DirectoryPath, Field, ValidationError
from pydantic.fields import FieldInfo

from engine.redact import HIDDEN
from engine.sampling_defaults import LIMITS, sampling_defaults
from errors.engine_tar import GenerationConfigInvalid
from errors.settings import InvalidSetting


def _texts(value: object) -> object:
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


def _program(path: str) -> str:
    if not os.access(path, os.X_OK) or Path(path).is_dir():
        raise ValueError("the path of a Python that can be run")
    return path


def _address(address: IPv4Address) -> IPv4Address:
    if address.is_unspecified:
        raise ValueError("one IPv4 address of this machine")
    return address


def _zmq_endpoint(endpoint: str) -> str:
    if not _ZMQ_ENDPOINT.fullmatch(endpoint):
        raise ValueError("an endpoint of ZeroMQ: tcp://*:PORT, tcp://HOST:PORT or ipc:///PATH")
    return endpoint


def _head_address(value: object) -> object:
    match = _HEAD.fullmatch(value) if isinstance(value, str) else None
    port = int(match["port"] or HEAD_PORT) if match is not None else 0
    if match is None or not 1 <= port <= HIGHEST_PORT:
        raise ValueError(f"HOST[:PORT] of the head, port {HEAD_PORT} by default")
    return f"{match['host']}:{port}"


def _generation_config(value: object) -> object:
    if not isinstance(value, str) or value in ("auto", "none"):
        return value
    with suppress(ValueError, GenerationConfigInvalid):
        given = json.loads(value)
        if isinstance(given, dict) and given.keys() <= LIMITS.keys():
            return sampling_defaults(given, "the setting")
    raise ValueError(f"auto, none, or a JSON object of {', '.join(LIMITS)}")


HIGHEST_PORT = 65535
_ZMQ_ENDPOINT = re.compile(r"tcp://[^\s/]+:\d{1,5}|ipc:///\S+")
HEAD_PORT = 29500
_HEAD = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?")
HeadAddress = Annotated[str, BeforeValidator(_head_address)]
GenerationConfig = Annotated[str | dict[str, Any], BeforeValidator(_generation_config)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Paths = Annotated[tuple[DirectoryPath, ...], BeforeValidator(_texts)]
Program = Annotated[str, AfterValidator(_program)]
Address = Annotated[IPv4Address, AfterValidator(_address)]
Port = Annotated[int, Field(ge=1, le=HIGHEST_PORT)]
Seconds = Annotated[float, Field(ge=0.001, allow_inf_nan=False)]
ZmqEndpoint = Annotated[str, AfterValidator(_zmq_endpoint)]
URL = Annotated[str, Field(pattern=r"^https?://[^/\s,]+\S*$")]

_EXPECTED = {
    "bool_parsing": "true or false",
    "ip_v4_address": "one IPv4 address of this machine",
    "path_not_file": "a file that exists",
    "path_not_directory": "a folder that exists",
    "string_pattern_mismatch": "an http or https URL",
}
"""Expected values by pydantic's type of error."""

_Model = TypeVar("_Model", bound=BaseModel)


def variable(name: str, default: Any, meaning: str, **limits: Any) -> Any:
    """Make the field of an environment variable. ``meaning``: for docs/settings.md."""
    return Field(default, title=name, description=meaning, **limits)


def variables_of(model: type[BaseModel]) -> dict[str, str]:
    """Return every environment variable of ``model``, with its field."""
    return {field.title: name for name, field in model.model_fields.items() if field.title}


def checked(model: type[_Model], values: dict[str, Any], old_names: Mapping[str, str]) -> _Model:
    """Return the model of ``values``. Raises E1006, which names the first invalid variable.

    ``old_names``: variables that were set instead of the field's own, by field.
    """
    try:
        return model(**values)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        name = str(first["loc"][0])
        field = model.model_fields[name]
        text = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ").replace("'", "")
        raise InvalidSetting(
            name=old_names.get(name) or str(field.title),
            expected=_EXPECTED.get(first["type"]) or _number(field) or text,
            value=first["input"] if field.repr else HIDDEN,
        ) from exc


def _number(field: FieldInfo) -> str | None:
    """Return the limits of a field that has a number."""
    minimum = next((limit.ge for limit in field.metadata if hasattr(limit, "ge")), None)
    maximum = next((limit.le for limit in field.metadata if hasattr(limit, "le")), None)
    if minimum is None:
        return None
    if maximum == HIGHEST_PORT:
        return "a port, 1 to 65535" if minimum else "a port, 1 to 65535, or 0 for none"
    noun = "a number" if field.annotation in (float, float | None) else "a whole number"
    return f"{noun} of at least {minimum:g}" if maximum is None else f"{noun} from {minimum:g} to {maximum:g}"
