"""The builder's Cog entry point: one prediction builds an engine.tar from a build config."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import cog

from builder.build import build
from builder.progress import progress_lines
from builder.upload import find_upload_url, upload
from builder.weights.files import build_error
from engine.download.address import allows_private_urls
from engine.lock import try_locked
from errors.build import BuilderBusy
from errors.requests import InvalidInput

ENGINE_TAR_VARIABLE = "ENGINE_TAR"
MAX_INLINE_BYTES = 64 << 20
"""Maximum size of an engine.tar in the response, which Cog encodes as base64 in eight times its memory."""
_print_line = partial(print, flush=True)


class Runner(cog.BaseRunner):  # type: ignore[misc]  # cog has no types
    """Builder of one engine at a time; its engine.tar is written to ENGINE_TAR or the working directory."""

    def run(
        self,
        config: str = cog.Input(
            description="The build config (YAML): a URL (http, https, data), or a path on the builder"
        ),
        hf_token: cog.Secret | None = cog.Input(  # noqa: B008
            default=None, description="Hugging Face token, for models that are private or gated"
        ),
    ) -> cog.Path:
        """Build an engine. The output is engine.tar, or its URL if it is too large for a response."""
        engine_tar = Path(os.environ.get(ENGINE_TAR_VARIABLE) or "engine.tar").absolute()
        try:
            with _alone(engine_tar):
                # An earlier engine could be taken for the result of a failed build.
                engine_tar.unlink(missing_ok=True)
                build(
                    _source(config),
                    engine_tar,
                    hf_token=_secret(hf_token),
                    only_public=not allows_private_urls(),
                    report=_print_line,
                    progress=progress_lines(_print_line),
                )
                return _answer(engine_tar)
        except OSError as exc:
            raise build_error(exc, engine_tar) from exc


@contextmanager
def _alone(engine_tar: Path) -> Iterator[None]:
    """Raise BuilderBusy if another process, such as a second server's, builds the same ``engine_tar``."""
    with try_locked(engine_tar.with_name(f".{engine_tar.name}.lock")) as is_alone:
        if not is_alone:
            raise BuilderBusy(path=engine_tar)
        yield


def _source(config: object) -> str:
    """Return the path or URL of ``config``. Raises InvalidInput: without a schema Cog passes any type.

    The input is declared as text because Cog would download a URL itself, from any address.
    """
    if not isinstance(config, str) or not config.strip():
        raise InvalidInput(name="config", expected="the URL or the path of a build config", value=config)
    return config


def _secret(hf_token: object) -> str | None:
    if hf_token is None:
        return None
    if not isinstance(hf_token, cog.Secret):
        raise InvalidInput(name="hf_token", expected="text", value=type(hf_token).__name__)
    secret: str | None = hf_token.get_secret_value()
    return secret


def _answer(engine_tar: Path) -> cog.Path:
    if (upload_url := find_upload_url()) is not None:
        url = upload(engine_tar, upload_url, progress_lines(_print_line))
        return cast(cog.Path, url)  # NOTE: Cog returns a str unchanged, also where a Path is declared
    if engine_tar.stat().st_size <= MAX_INLINE_BYTES:
        return cog.Path(engine_tar)
    _print_line(f"too large for a response: docker container cp <container>:{engine_tar} .")
    return cast(cog.Path, engine_tar.as_uri())
