"""The Dynamo worker as a supervised child, which a runner with ``DYNAMO`` starts beside its API server."""

import asyncio
import math
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from engine.directory import Engine
from engine.kinds import LORA_FOLDER, supports
from engine.machine.root import IS_CHECKOUT, SOURCE_ROOT, own_environment
from errors.coded_error import CodedError
from errors.dynamo import DynamoWorkerFailed
from errors.settings import InvalidSetting, MissingRequirement
from runner.dynamo.start import DynamoStart
from runner.generation.model import ModelFacts
from runner.settings.ports import LOOPBACK, free_ports, local_url
from runner.settings.settings import Settings
from runner.supervision.child import Log
from runner.supervision.failures import ProcessFailure
from runner.supervision.health import answers_ok, ask
from runner.supervision.supervised import SupervisedProcess

_ENVIRONMENT = ".venv-dynamo"
_MIN_START_TIMEOUT_S = 60.0
_MAX_ROUTERS_S = 5.0
"""Dynamo's default of the time between leaving discovery and draining, in which front ends see that."""
_PASSED_ON = ("DYN_", "ETCD_", "NATS_")
"""Beginnings of Dynamo's own variables, of which some hold passwords."""
_HEARTBEAT_PATH = "/engine/control/heartbeat"


class DynamoWorker(SupervisedProcess):
    """The worker, from ``begin`` to ``stop``."""

    part = "dynamo"
    log_prefix = "dynamo"
    stop_grace_s = 5.0

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        model: ModelFacts,
        engine_socket: Path | None,
        log: Log,
        on_failure: Callable[[ProcessFailure], bool],
    ) -> None:
        """Initialize. ``engine_socket``: None with NVIDIA's C++ backend. Raises E1006 or E1008."""
        start_timeout_s = max(_MIN_START_TIMEOUT_S, settings.triton_start_timeout_s)
        # NOTE: no failure counts: if discovery is away, the runner's own APIs go on.
        super().__init__(
            "the Dynamo worker",
            log,
            lambda failure: on_failure(replace(failure, counts=False)),
            start_timeout_s,
        )
        if engine_socket is None or model.pooling is not None:
            expected = "unset with an embedding model and with NVIDIA's C++ backend"
            raise InvalidSetting(name="DYNAMO", expected=expected, value=settings.dynamo)
        self._settings = settings
        self._python = settings.dynamo_python or _default_python()
        self._url = ""
        kind = engine.manifest.engine_kind
        lora = (engine.path / LORA_FOLDER).glob("*") if supports(kind, "lora_name") else ()
        self._start_message = DynamoStart(
            engine_socket=engine_socket,
            engine_kind=kind,
            engine_dir=engine.path,
            has_chat=model.chat.exists,
            chat_template=settings.chat_template,
            names=settings.openai_models or (engine.manifest.model_id or kind,),
            adapters=tuple(sorted(path.name for path in lora)),
            end_ids=model.end_ids,
            pad_id=model.pad_id,
            max_sequence_length=model.max_sequence_length,
            max_input_length=model.max_input_length,
            sampling_defaults=dict(model.sampling_defaults),
            lowest_priority=settings.min_priority.get("", 0),
            timeout_s=settings.triton_timeout_s,
            discovery=str(settings.dynamo),
            host=str(settings.dynamo_host),
            kv_events=kv_event_source(settings),
        )

    async def launch(self) -> None:
        environment = worker_environment(self._settings, os.environ)
        self._url = local_url(environment["DYN_SYSTEM_HOST"], int(environment["DYN_SYSTEM_PORT"]))
        await self.launch_module("runner.dynamo", self._start_message.encode(), [], environment, self._python)

    async def is_ready(self) -> bool:
        return await answers_ok(f"{self._url}/health")

    async def is_answering(self) -> bool:
        answer = await ask(f"{self._url}{_HEARTBEAT_PATH}", b"{}")
        return answer is not None and answer.status == 200

    def start_error(self, reason: str) -> CodedError:
        return DynamoWorkerFailed(reason=reason, log_tail=self.child.last_lines())

    async def drain(self) -> None:
        """Leave discovery, and let running requests end within the grace period.

        Once ``stop`` has ended the process, front ends continue the other requests on another worker.
        """
        await self.end_supervision()
        self.child.send_signal(signal.SIGTERM)
        await asyncio.wait(
            [asyncio.ensure_future(self.child.exit_code())], timeout=self._settings.stop_grace_s
        )


def kv_event_source(settings: Settings) -> tuple[str, str] | None:
    """Return where this machine's processes get KV events, and their topic; None: nowhere."""
    endpoint = settings.kv_events or ""
    if "*" not in endpoint and not endpoint.startswith("ipc:"):
        return None
    return endpoint.replace("*", LOOPBACK), settings.kv_events_topic


def worker_environment(settings: Settings, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker: Dynamo's own as ``given``, else those that our settings make."""
    host = str(settings.dynamo_host)
    routers_s = min(_MAX_ROUTERS_S, settings.stop_grace_s / 5)
    defaults = {
        "DYN_TCP_RPC_HOST": host,
        "DYN_EVENT_PLANE_HOST": host,
        # Its health, its metrics, and the tokenizer and chat template for front ends on other machines.
        "DYN_SYSTEM_HOST": host,
        "DYN_SYSTEM_PORT": str(free_ports(1)[0]),
        "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": f"{routers_s:g}",
        "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT": str(math.ceil(settings.stop_grace_s)),
        "DYN_LOG": "warn,request_span=warn",
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
    }
    dynamos = {name: value for name, value in given.items() if name.startswith(_PASSED_ON)}
    if "DYN_FILE_KV" in dynamos:  # The worker's folder is another one.
        dynamos["DYN_FILE_KV"] = str(Path(dynamos["DYN_FILE_KV"]).absolute())
    return {**own_environment(), "PYTHONUNBUFFERED": "1", **defaults, **dynamos}


def _default_python() -> str:
    """Return the Python of the checkout's environment. Raises E1008 if there is none."""
    python = SOURCE_ROOT / _ENVIRONMENT / "bin" / "python"
    if not python.exists():
        remedy = "run `make dynamo`, or name" if IS_CHECKOUT else "name"
        raise MissingRequirement(
            what="Dynamo's environment, which DYNAMO asks for,",
            remedy=f"{remedy} the Python that has ai-dynamo 1.6 in DYNAMO_PYTHON",
        )
    return str(python)
