"""References are read as Docker reads them, and what is none is refused."""

import pytest

from cli.registry.image_reference import parse_reference
from errors.image import ImageReferenceInvalid

_DIGEST = "sha256:" + "0" * 64


READ = {
    "registry.example.com/team/llama:1": "registry.example.com/team/llama:1",
    "registry.example.com/team/llama": "registry.example.com/team/llama:latest",
    "localhost:5000/llama:chat": "localhost:5000/llama:chat",
    "localhost/llama": "localhost/llama:latest",
    "llama": "registry-1.docker.io/library/llama:latest",
    "team/llama:2": "registry-1.docker.io/team/llama:2",
    "docker.io/llama": "registry-1.docker.io/library/llama:latest",
    f"example.com/a/b:1@{_DIGEST}": f"example.com/a/b@{_DIGEST}",
}
REFUSED = ("", None, 5, "UPPER/case", "a b", "example.com/", "example.com/a:", "a@sha256:12", "a//b", "-a")
LOCAL = ("localhost:5000/a", "127.0.0.1:5000/a", "[::1]/a", "[::1]:5000/a")
REMOTE = ("localhost.example.com/a", "127.example.com/a", "a")


def test_what_docker_takes_is_taken() -> None:
    assert {text: str(parse_reference(text, "base_model")) for text in READ} == READ


def test_what_is_no_reference_is_refused_by_the_name_of_its_setting() -> None:
    for text in REFUSED:
        with pytest.raises(ImageReferenceInvalid, match=r"E1401 .*base_model"):
            parse_reference(text, "base_model")


def test_plain_http_is_only_for_this_machine() -> None:
    found = [text for text in LOCAL + REMOTE if parse_reference(text, "base_model").is_local]
    assert found == list(LOCAL)
