"""What is printed once a server is ready, and the documented requests."""

import pytest

from cli.curl_forms import curl_forms, ready_lines
from runner.cog_server.__main__ import warn_of_open_port
from runner.settings.settings import load_settings

KEYS = {"API_KEYS": "planted-secret,other"}


def printed(host: str | None = "127.0.0.1", **variables: str) -> list[str]:
    settings = load_settings({"OPENAI_HOST": "127.0.0.1", **variables})
    return "\n".join(ready_lines(settings, cog_host=host)).splitlines()


def test_the_page_comes_first_and_then_one_request() -> None:
    lines = printed()
    assert "http://localhost:9000/" in lines[0]
    assert [line.split()[0] for line in lines if "curl" in line] == ["curl"]
    assert len(lines) < 15
    assert "KEY" not in "".join(lines)


def test_without_the_openai_port_cog_is_asked() -> None:
    lines = printed(OPENAI_PORT="0")
    assert "  http://localhost:5000/predictions" in lines
    assert "9000" not in "".join(lines)


def test_commands_take_a_key_and_no_key_is_printed() -> None:
    for form in curl_forms(1, 2, 3, has_keys=True)[2:]:
        assert '-H "Authorization: Bearer $KEY"' in form.command
    lines = printed(**KEYS)
    assert '  -H "Authorization: Bearer $KEY" \\' in lines
    assert "planted-secret" not in "".join(lines)


@pytest.mark.parametrize(
    ("host", "variables", "is_warned"),
    [("127.0.0.1", KEYS, False), ("0.0.0.0", {}, False), ("0.0.0.0", KEYS, True), ("10.1.2.3", KEYS, True)],
)
def test_an_open_port_of_cog_beside_keys_is_told(
    host: str, variables: dict[str, str], is_warned: bool
) -> None:
    log: list[str] = []
    warn_of_open_port(variables, ["--host", host], 5000, log.append)
    warnings = [line for line in printed(host, **variables) if line.startswith("warning: API_KEYS")]
    assert (bool(log), bool(warnings)) == (is_warned, is_warned)
