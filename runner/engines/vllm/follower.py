"""A node that holds ranks of an engine whose head runs on another machine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.pooling import read_pooling
from errors.coded_error import CodedError
from errors.engines import VllmEngineDied
from errors.wire import WireError
from runner.engines.vllm.arguments import prepare_environment, prepare_import, read_arguments
from runner.engines.vllm.interface import check_vllm
from runner.engines.vllm.node_link import End, Link
from runner.engines.vllm.nodes import join_head, node_facts, read_nodes
from runner.engines.vllm.read_ahead import read_ahead

log = logging.getLogger("cog_triton.engine")


def join(
    engine_dir: Path,
    options: Mapping[str, str],
    on_ready: Callable[[], None],
    broken: Callable[[CodedError], None],
) -> None:
    """Join the head and hold this node's ranks. ``broken`` ends this process when the head is lost.

    Call ``on_ready`` once the ranks are loaded. Raises E2205 when one ends, E2207, E2208, and what ``load``
    of the adapter raises.
    """
    cache_dir, nodes = options.get("engine_cache_dir"), read_nodes(options)
    arguments = read_arguments(engine_dir, options)
    read_ahead(engine_dir, arguments.get("load_format", "auto"))
    prepare_import(cache_dir)
    check_vllm(log.warning)
    from runner.engines.vllm.client import make_config, start_ranks

    link, added = join_head(nodes, node_facts(engine_dir, arguments, nodes))

    def watch() -> None:
        reason = link.why_ended()
        broken(VllmEngineDied(reason=f"{nodes.head} is lost: {reason}"))

    threading.Thread(target=watch, name="head", daemon=True).start()
    with _told(link):
        prepare_environment(arguments | added, cache_dir)
        wait = start_ranks(make_config(arguments | added, read_pooling(engine_dir)))
        on_ready()
        raise VllmEngineDied(reason=wait())


@contextmanager
def _told(link: Link) -> Iterator[None]:
    """Provide a context whose errors are sent to the head, too."""
    try:
        yield
    except CodedError as exc:
        with suppress(OSError):
            link.send(End(WireError.of(exc)))
        raise
