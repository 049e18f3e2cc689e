"""``engine_manifest.json``: what an engine is, where it came from and the digest of each of its files."""

import hashlib
import json
import math
import re
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticKnownError, PydanticSerializationError

from engine.kinds import KINDS
from engine.names import BadName, NameSet, normal_name
from engine.redact import without_secrets
from errors.engine_tar import InvalidManifest, NewerManifest

MANIFEST_NAME = "engine_manifest.json"
FORMAT_VERSION = 1
MAX_MANIFEST_BYTES = 16 << 20

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Escape of a surrogate: half of a character. Two of them are one character."""
_DIGEST_KEY = "manifest_sha256"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1)]


def _known_kind(name: object) -> str:
    if not isinstance(name, str) or name not in KINDS:
        *others, last = map(repr, KINDS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})
    return name


EngineKind = Annotated[
    str, PlainValidator(_known_kind), WithJsonSchema({"enum": list(KINDS), "type": "string"})
]
"""A name of the table ``engine.kinds``, as a field of a pydantic model."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


class Library(_Frozen):
    """Library that built the engine and must load it, e.g. ``tensorrt_llm`` 0.16.0."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid", strict=False))
class FileEntry:
    """Entry of a file. NOTE: no model, which would take a kilobyte for each of a hundred thousand files."""

    size_bytes: Annotated[int, Field(ge=0, strict=True)]
    sha256: Annotated[Sha256, Field(strict=True)] | None
    """Lower-case hex. None only in a directory without a manifest or made of links to verified downloads."""


class EngineFacts(_Frozen):
    """Everything a builder knows of an engine. None means "not known" or "has no meaning here"."""

    engine_kind: EngineKind
    library: Library | None = None
    sm: Count | None = None
    """Compute capability without the dot (86 is 8.6) that the engine was compiled for; None: any."""
    world_size: Count = 1
    dtype: str | None = None
    quantization: str | None = None
    max_batch_size: Count | None = None
    max_input_len: Count | None = None
    """Longest prompt in tokens."""
    max_seq_len: Count | None = None
    """Most tokens of prompt and output together."""
    model_id: str | None = None
    revision: str | None = None
    build_config: dict[str, Any] = {}
    """Build config, from which this model removes secrets."""

    @field_validator("build_config", mode="before")
    @classmethod
    def _without_secrets(cls, value: object) -> object:
        return without_secrets(value)

    @model_validator(mode="after")
    def _is_text(self) -> "EngineFacts":
        try:
            self.model_dump_json()
        except PydanticSerializationError as exc:
            raise ValueError("a text is not valid Unicode") from exc
        return self


class Manifest(EngineFacts):
    format_version: Annotated[int, Field(ge=1, le=FORMAT_VERSION)] = FORMAT_VERSION
    files: dict[str, FileEntry]
    """Every file of the engine but the manifest itself, by its posix name relative to the engine."""

    @field_validator("files")
    @classmethod
    def _names_are_plain(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        names = NameSet()
        names.add(MANIFEST_NAME)
        for name in files:
            try:
                if normal_name(name) != name or not name:
                    raise BadName("is not a plain relative name")
                names.add(name)
            except BadName as exc:
                raise ValueError(f"the name {name!r} {exc}") from exc
        return files

    @property
    def size_bytes(self) -> int:
        """Size of all files together, less the manifest."""
        return sum(entry.size_bytes for entry in self.files.values())


def make_manifest(facts: EngineFacts, files: dict[str, FileEntry], place: str) -> Manifest:
    """Make a manifest of ``facts`` and ``files``. Raises InvalidManifest if a file's name is not allowed."""
    try:
        return Manifest(**facts.model_dump(), files=files)
    except ValidationError as exc:
        raise InvalidManifest(place=place, reason=_first_complaint(exc)) from exc


def manifest_bytes(manifest: Manifest) -> bytes:
    """Write ``manifest`` as the one JSON text: keys sorted, and a digest of itself so that damage shows."""
    fields = manifest.model_dump(mode="json")
    fields[_DIGEST_KEY] = _digest(fields)
    return (json.dumps(fields, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse_manifest(data: bytes, place: str, *, needs_hashes: bool = True) -> Manifest:
    """Parse a manifest. Raises InvalidManifest or NewerManifest, which name ``place``."""
    try:
        fields = _json_object(data, place)
        format_version = fields.get("format_version")
        if type(format_version) is int and format_version > FORMAT_VERSION:
            raise NewerManifest(place=place, format_version=format_version, newest_known=FORMAT_VERSION)
        stated_digest = fields.pop(_DIGEST_KEY, None)
        if stated_digest is not None and stated_digest != _digest(fields):
            raise InvalidManifest(place=place, reason=f"its content does not match its {_DIGEST_KEY}")
        manifest = Manifest.model_validate(fields)
    except RecursionError as exc:
        raise InvalidManifest(place=place, reason="it is nested too deeply") from exc
    except ValidationError as exc:
        raise InvalidManifest(place=place, reason=_first_complaint(exc)) from exc
    for name, entry in manifest.files.items():
        if needs_hashes and entry.sha256 is None:
            raise InvalidManifest(place=place, reason=f"it has no sha256 for {name!r}")
    return manifest


def content_key(manifest: Manifest) -> str:
    """Return a key of the engine's content: equal keys, equal bytes in every file."""
    return _digest(manifest.model_dump(mode="json"))


def _digest(fields: dict[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _json_object(data: bytes, place: str) -> dict[str, Any]:
    try:
        fields = json.loads(
            data.decode(), object_pairs_hook=_unique_keys, parse_constant=_finite, parse_float=_finite
        )
        if _SURROGATE.search(data):
            json.dumps(fields, ensure_ascii=False).encode()
    except ValueError as exc:
        raise InvalidManifest(place=place, reason=f"it is not JSON ({exc})") from exc
    if not isinstance(fields, dict):
        raise InvalidManifest(place=place, reason="it is not a JSON object")
    return fields


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def _first_complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
