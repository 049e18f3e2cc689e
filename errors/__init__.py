"""Every error code of the project, once: ``E[category][subcategory][sequence] Name: sentence``.

Category 1 is the caller's to fix, 2 is ours. Subcategories: 10xx any framework, 11xx Triton arguments,
12xx build config, 13xx engine artifact, 14xx image, 15xx load test, 16xx OpenAI-compatible API, 17xx chat;
21xx Triton, 22xx vLLM, 23xx engine build, 24xx TensorRT-LLM, 25xx registry, 26xx OpenAI-compatible API.
"""

from __future__ import annotations

import re

from errors import (  # noqa: F401 - each defines its codes
    api,
    build,
    build_config,
    chat,
    download,
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
    """The coded error in a text of a channel that carries only text: Triton's errors and logs, Cog's answers.

    The contract is ``E[code] Name: sentence``. The code chooses the class, and nothing else may be read out
    of the text, so ``facts`` is empty. Where both ends are ours, errors travel as ``errors.wire``.
    """
    match = _TEXT.search(text)
    if match is None or match[1] not in BY_CODE:
        return None
    return BY_CODE[match[1]].restore(match[3], {})


def markdown_table() -> str:
    rows = ["| code | name | meaning |", "| --- | --- | --- |"]
    rows += [f"| {code} | {BY_CODE[code].__name__} | {BY_CODE[code].summary} |" for code in sorted(BY_CODE)]
    return "\n".join(rows)
