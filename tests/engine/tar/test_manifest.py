import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.redact import HIDDEN, redact_text, redact_url, without_secret_variables, without_secrets
from engine.tar.manifest import (
    EngineFacts,
    FileEntry,
    Library,
    Manifest,
    content_key,
    manifest_bytes,
    parse_manifest,
)
from errors.engine_tar import InvalidManifest, NewerManifest

SHA = "0123456789abcdef" * 4
MANIFEST = Manifest(
    engine_kind="tensorrt_llm",
    library=Library(name="tensorrt_llm", version="0.16.0"),
    sm=86,
    files={"rank0.engine": FileEntry(size_bytes=5, sha256=SHA)},
)

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=12,
)


def _fields(**changes: Any) -> bytes:
    fields = json.loads(manifest_bytes(MANIFEST))
    del fields["manifest_sha256"]
    return json.dumps(fields | changes).encode()


def test_a_manifest_survives_its_bytes_and_needs_no_digest_but_a_known_format() -> None:
    assert parse_manifest(manifest_bytes(MANIFEST), "x") == parse_manifest(_fields(), "x") == MANIFEST
    assert manifest_bytes(parse_manifest(manifest_bytes(MANIFEST), "x")) == manifest_bytes(MANIFEST)
    with pytest.raises(NewerManifest, match=r"version 2, this program reads up to 1; update"):
        parse_manifest(_fields(format_version=2, what_is_this=1), "engine.tar")


@given(config=st.dictionaries(st.text(max_size=9), _JSON, max_size=4))
def test_any_build_config_survives(config: dict[str, Any]) -> None:
    manifest = Manifest(engine_kind="paced", build_config=config, files={})
    assert parse_manifest(manifest_bytes(manifest), "x") == manifest


def test_the_order_of_files_does_not_matter() -> None:
    entries = {name: FileEntry(size_bytes=1, sha256=SHA) for name in ("b", "a")}
    one = Manifest(engine_kind="vllm", files=entries)
    other = Manifest(engine_kind="vllm", files=dict(reversed(entries.items())))
    assert manifest_bytes(one) == manifest_bytes(other)
    assert content_key(one) == content_key(other)
    assert content_key(one) != content_key(MANIFEST)


ENTRY = {"size_bytes": 1, "sha256": SHA}
INVALID = [
    b"",
    b"[]",
    b"\xff",
    b'{"a":' * 100_000,
    b'{"files": {}, "files": {}}',
    _fields(format_version=0),
    _fields(format_version="1"),
    _fields(format_version=True),
    _fields(engine_kind="onnx"),
    _fields(world_size=0),
    _fields(surprise=1),
    *(_fields(files={name: ENTRY}) for name in ("../x", "/x", "./x", "", "engine_manifest.json")),
    _fields(files=dict.fromkeys(("a", "A"), ENTRY)),
    _fields(files=dict.fromkeys(("a", "a/b"), ENTRY)),
    _fields(files={"x": {**ENTRY, "size_bytes": -1}}),
    *(_fields(files={"x": {**ENTRY, "sha256": each}}) for each in (SHA.upper(), SHA + "\n", None)),
    _fields(files={"x": {"size_bytes": 1}}),
    _fields(manifest_sha256=SHA),
    _fields(manifest_sha256=5),
    _fields(model_id="\ud800"),
    # Values that would change.
    *(
        _fields(build_config={"a": [0]}).replace(b"[0]", b"[%s]" % each)
        for each in (b"NaN", b"-Infinity", b"1e999", b'"\\ud800"', b'"\\uDFFF x"', b'{"\\ud83d": 1}')
    ),
]


def test_what_is_no_manifest_is_refused() -> None:
    for content in INVALID:
        with pytest.raises(InvalidManifest, match=r"E1302 .*engine\.tar"):
            parse_manifest(content, "engine.tar")


def test_a_pair_of_surrogates_is_a_character() -> None:
    content = _fields(build_config={"a": "\U0001f600"})
    assert b"\\ud83d\\ude00" in content
    assert parse_manifest(content, "x").build_config == {"a": "\U0001f600"}


def test_facts_can_not_be_changed_or_misspelt() -> None:
    with pytest.raises(ValidationError):
        MANIFEST.sm = 90
    with pytest.raises(ValidationError):
        EngineFacts(engine_kind="vllm", max_sequence_length=1)


def test_a_build_config_becomes_json_and_loses_its_secrets() -> None:
    config: dict[Any, Any] = {
        "hf_token": "hf_x",
        "model_id": "acme/tiny",
        "when": datetime.date(2024, 7, 1),
        80: float("nan"),
        "build": [{"password": "x", "max_num_tokens": 5, "tokens_per_block": 64, "eos_token": "</s>"}],
        "url": "https://me:pw@host/a?sig=1#f and hf_abcdefghijklmnopqrstuvwx",
    }
    assert EngineFacts(engine_kind="vllm", build_config=config).build_config == {
        "model_id": "acme/tiny",
        "when": "2024-07-01",
        "80": "nan",
        "build": [{"max_num_tokens": 5, "tokens_per_block": 64, "eos_token": "</s>"}],
        "url": f"https://host/a?{HIDDEN} and {HIDDEN}",
    }


@given(value=_JSON)
def test_taking_secrets_out_twice_is_taking_them_out_once(value: object) -> None:
    assert without_secrets(without_secrets(value)) == without_secrets(value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/engine.tar", "https://host/engine.tar"),
        ("https://user:s3cret@host:80/a?sig=s3cret#s3cret", f"https://host:80/a?{HIDDEN}"),
        ("https://s3cret@host/a", "https://host/a"),
        ("https://user:s3c@ret@host/a", "https://host/a"),
        ("http://[s3cret", HIDDEN),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert "s3cret" not in redact_text(f"see {url}, please")


SECRETS = (
    "HF_TOKEN HUGGING_FACE_HUB_TOKEN COG_UPLOAD_URL COG_WEIGHTS AWS_SECRET_ACCESS_KEY AZURE_CLIENT_SECRET "
    "GOOGLE_APPLICATION_CREDENTIALS API_KEYS OPENAI_API_KEYS REPLICATE_API_TOKEN DB_PASSWORD"
)
OTHERS = "PATH LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES TOKENIZERS_PARALLELISM HF_HUB_OFFLINE VLLM_CACHE_ROOT"


def test_secrets_stay_here_and_the_rest_goes_along() -> None:
    environment = dict.fromkeys(f"{SECRETS} {OTHERS}".split(), "x")
    assert set(without_secret_variables(environment)) == set(OTHERS.split())
