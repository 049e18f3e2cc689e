"""Fixtures of the command's tests."""

import pytest

from runner.settings.ports import free_ports


@pytest.fixture
def ports() -> dict[str, str]:
    names = ("PORT", "TRITON_HTTP_PORT", "TRITON_GRPC_PORT", "TRITON_METRICS_PORT", "OPENAI_PORT")
    return dict(zip(names, map(str, free_ports(len(names))), strict=True))
