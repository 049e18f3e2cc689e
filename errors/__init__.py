"""Every error code of the project, once: ``E[category][subcategory][sequence] Name: sentence``.

Category 1 is the caller's to fix, 2 is ours. The subcategories, and the modules that have them:

    requests         10, 11      any API, Triton's arguments
    settings         10          settings, ports, what a machine must provide
    triton_front     11, 21      the front of Triton
    external_triton  11, 21      an external Triton
    build_config     12          build configs
    download         13          where an engine comes from
    engine_tar       13          the files of an engine
    machine          13          what an engine needs that the GPUs here lack
    image            14, 25      images, and their registry
    load_test        15          load tests and measurements
    api              16, 26      the API server
    chat             17          chats and their templates
    triton           21          Triton, and the way to it
    engines          21, 22, 24  an engine and its processes, vLLM, TensorRT-LLM
    build            23          builds
    dynamo           27          the Dynamo worker
"""

from __future__ import annotations

import re

from errors import (  # noqa: F401 - each defines its codes
    api,
    build,
    build_config,
    chat,
    download,
    dynamo,
    engine_tar,
    engines,
    external_triton,
    image,
    load_test,
    machine,
    requests,
    settings,
    triton,
    triton_front,
)
from errors.coded_error import CodedError

_TEXT = re.compile(r"(E[12]\d{3}) (\w+): (.*)", re.DOTALL)

BY_CODE: dict[str, type[CodedError]] = {error.code: error for error in CodedError.__subclasses__()}


def find_in_text(text: str) -> CodedError | None:
    """Return the coded error in ``text``, or None.

    Use it for channels that carry only text: Triton's errors and logs, Cog's answers. The contract is
    ``E[code] Name: sentence``. The code chooses the class, and nothing else may be read out of the text, so
    ``facts`` is empty. Where both ends are ours, errors travel as ``errors.wire``.
    """
    match = _TEXT.search(text)
    if match is None or match[1] not in BY_CODE:
        return None
    return BY_CODE[match[1]].restore(match[3], {})


def markdown_table() -> str:
    rows = ["| code | name | meaning |", "| --- | --- | --- |"]
    rows += [f"| {code} | {BY_CODE[code].__name__} | {BY_CODE[code].summary} |" for code in sorted(BY_CODE)]
    return "\n".join(rows)
