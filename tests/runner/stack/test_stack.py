"""The order in which the processes behind the APIs begin and end. They are stand-ins, which note it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.directory import load
from runner.settings.settings import load_settings
from runner.stack import stack
from runner.stack.stack import EngineStack
from runner.triton_server import nvidia_client
from tests.runner.paced_engine import make_paced_model


def noting(name: str, noted: list[str]) -> type:
    """Return a class of processes, or of clients, that notes their beginning and end."""

    class Noting:
        def __init__(self, *args: object, **options: object) -> None: ...

        def begin(self) -> None:
            noted.append(f"{name} begins")

        async def stop(self) -> None:
            noted.append(f"{name} ends")

        async def __aenter__(self) -> Noting:
            self.begin()
            return self

        async def __aexit__(self, *_: object) -> None:
            await self.stop()

    return Noting


def test_the_client_of_nvidias_backend_goes_before_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton waits for its clients' connections when it ends."""
    noted: list[str] = []
    rendered = SimpleNamespace(is_cpp=True)
    monkeypatch.setattr(stack, "make_runtime_dir", lambda port: tmp_path)
    monkeypatch.setattr(stack, "install_triton", lambda *_: None)
    monkeypatch.setattr(stack, "render", lambda *_, **__: rendered)
    monkeypatch.setattr(stack, "clear_folder", lambda path: None)
    monkeypatch.setattr(stack, "TritonFront", noting("front", noted))
    monkeypatch.setattr(stack, "TritonServer", noting("Triton", noted))
    monkeypatch.setattr(nvidia_client, "NvidiaClient", noting("client", noted))
    engine = load(make_paced_model(tmp_path / "engine", 100).directory)
    settings = load_settings({"COG_TRITON_CACHE": str(tmp_path / "cache")})

    async def run() -> None:
        started = EngineStack(settings, noted.append, asyncio.Event(), lambda: None)
        await started.begin(cast(Any, engine))
        await started.close()

    asyncio.run(run())
    assert noted == [
        "front begins", "Triton begins", "client begins", "client ends", "Triton ends", "front ends"
    ]  # fmt: skip
