from __future__ import annotations

import threading
from typing import Any


class Executor:
    @staticmethod
    def get_class(vllm_config: Any) -> type[Executor]:
        return Executor

    def __init__(self, vllm_config: Any, monitor_workers: bool = True) -> None: ...

    def start_worker_monitor(self, inline: bool = False) -> None:
        """Wait for the end of a rank. There is none."""
        threading.Event().wait()
