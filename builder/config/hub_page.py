"""URLs of pages of the Hugging Face Hub, which people copy from the browser and give as a model."""

import os
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from errors.requests import InvalidInput

GGUF = ".gguf"
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_REVISION_PAGES = ("tree", "blob", "resolve", "raw", "commit")
_OTHER_PAGES = ("datasets", "spaces", "collections", "papers", "docs", "blog", "models", "settings", "api")
_TAR_SUFFIXES = (".tar", ".tgz", ".gz", ".zst")
_EXPECTED = (
    "the page of a model or of its GGUF file on the Hugging Face Hub (https://huggingface.co/owner/name)"
)


def hub_page(text: str, name: str) -> dict[str, Any] | None:
    """Return the build config's keys for the model whose page, or that of its branch or file, ``text`` names.

    Return None if ``text``, the value of ``name``, is no such URL, or that of a tar. Raises E1005 for other
    pages.
    """
    try:
        url = urlsplit(text if "://" in text else f"https://{text}")
    except ValueError:
        return None
    hosts = {*_HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc} - {""}
    if url.scheme not in ("http", "https") or url.netloc.lower() not in hosts:
        return None
    if url.path.endswith(_TAR_SUFFIXES):
        return None
    parts = [unquote(part) for part in url.path.split("/") if part]
    end = next((at for at, part in enumerate(parts[:3]) if part in _REVISION_PAGES), len(parts))
    path = "/".join(parts[end + 2 :])
    file = parse_qs(url.query).get("show_file_info", [path])[0]  # The Hub's view of a GGUF file.
    is_gguf = file.endswith(GGUF)
    is_folder = parts[end : end + 1] == ["tree"] and bool(path)
    if end == 0 or parts[0] in _OTHER_PAGES or (is_folder and not is_gguf):
        raise InvalidInput(name=name, expected=_EXPECTED, value=text)
    keys = {"model_id": "/".join(parts[: min(end, 2)]).removesuffix(".git")}
    if end + 1 < len(parts):
        keys["revision"] = parts[end + 1]
    return {**keys, "gguf_file": file} if is_gguf else keys
