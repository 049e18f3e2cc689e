import threading
from concurrent.futures import ThreadPoolExecutor as ThreadPoolExecutor
from typing import Any

from vllm.v1.executor import Executor


class MultiprocExecutor(Executor):
    def __init__(self, vllm_config: Any, monitor_workers: bool = True) -> None: ...

    def start_worker_monitor(self, inline: bool = False) -> None:
        """Wait for the end of a rank. There is none."""
        threading.Event().wait()
