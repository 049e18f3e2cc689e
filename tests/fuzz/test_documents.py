"""Schemathesis over the documents that the servers publish, Cog's and OpenAI's: no 5xx, traceback or hang.

Against a whole runner, and the builder's server. ``/shutdown`` is left out, because it does what it says.
Never sent: ``webhook`` and ``output_file_prefix``, to which Cog itself would send.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

from runner.cog_server.launch import CogServer
from tests.runner.api.apis import CHAT_TEMPLATE
from tests.runner.paced_engine import make_paced_model
from tests.runner.servers import HOST, CogUnderTest, free_ports

if TYPE_CHECKING:
    import schemathesis

pytestmark = pytest.mark.servers

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "12"))
"""Number of requests for each operation."""
_TIMEOUT_S = 300
_READY_TIMEOUT_S = 400
_SENDS = ("webhook", "webhook_events_filter", "output_file_prefix")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("documents")
    template = folder / "template.jinja"
    template.write_text(CHAT_TEMPLATE)
    (port,) = free_ports(1)
    more = {"OPENAI_PORT": str(port), "OPENAI_HOST": HOST, "CHAT_TEMPLATE": str(template)}
    server = CogUnderTest(make_paced_model(folder / "model", 0), folder, **more)
    with _builder(folder / "builder") as builder:
        yield {"cog": server.url, "openai": f"http://{HOST}:{port}", "builder": builder.url}
        assert builder.health()["status"] == "READY"
        assert "Traceback" not in builder.log_path.read_text(errors="replace")
    assert server.predict(prompt="hi", max_tokens=3)["status"] == "succeeded"
    assert "Traceback" not in server.log()
    server.close()


def _builder(folder: Path) -> CogServer:
    (port,) = free_ports(1)
    folder.mkdir()
    places = {"ENGINE_TAR": str(folder / "engine.tar"), "COG_TRITON_CACHE": str(folder / "cache")}
    extra = {**places, "TMPDIR": str(folder)}
    server = CogServer("builder", host=HOST, port=port, log_path=folder / "cog.log", extra=extra)
    server.wait_ready(_READY_TIMEOUT_S)
    return server


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * EXAMPLES)
@pytest.mark.parametrize("name", ["openai", "cog", "builder"])
def test_no_request_that_a_document_describes_or_forbids_is_answered_by_a_5xx(
    servers: dict[str, str], name: str
) -> None:
    import schemathesis

    document = schemathesis.openapi.from_url(f"{servers[name]}/openapi.json").exclude(path="/shutdown")
    counts: dict[int, int] = {}
    for result in document.get_all_operations():
        operation = result.ok()
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            _try(operation, mode, servers[name], counts)
    print(name, counts)
    assert counts
    assert max(counts) < 500


def _try(
    operation: schemathesis.schemas.APIOperation, mode: object, url: str, counts: dict[int, int]
) -> None:
    from hypothesis import given
    from hypothesis.errors import Unsatisfiable

    @settings(
        max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict):
            for field in _SENDS:
                case.body.pop(field, None)
        response = case.call(base_url=url, timeout=_TIMEOUT_S)
        counts[response.status_code] = counts.get(response.status_code, 0) + 1
        assert "Traceback" not in response.text
        assert response.status_code < 500, (
            f"{operation.label}: {case.as_curl_command()}\n{response.text[:500]}"
        )

    try:
        run()
    except Unsatisfiable:
        pass  # There is nothing to send wrongly, or nothing at all.
