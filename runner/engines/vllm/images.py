"""Images of requests: decoded within bounds, then prepared by vLLM's own processor of the model."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

from PIL import Image

from errors.coded_error import CodedError, single_spaced
from errors.engines import EngineFailed, ImagesWaiting, as_coded
from errors.requests import ImageRefused, PromptTooLong
from runner.engines.protocol.checks import MAX_IMAGES
from runner.engines.vllm.arguments import ENGINE_KIND
from runner.engines.vllm.interface import (
    MULTIMODAL_REGISTRY,
    EngineCoreRequest,
    ImageMediaIO,
    MultiModalBudget,
    MultiModalCache,
    MultiModalFeatureSpec,
    ProcessorInputs,
    TimingContext,
    VllmConfig,
)
from runner.engines.vllm.interface import (
    image as vllm_image,
)

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_JPEG = b"\xff\xd8"
_SEVERAL_JPEGS = "MPO"
"""Format of a JPEG file with several pictures, as cameras write it."""
_MAX_PIXELS = 1 << 24
"""Limit of all images of a request together, which are in memory at once."""
_MAX_RATIO = 50
"""Limit of an image's longer side by the shorter one, which many processors scale to a fixed length."""
_COSTLY_PARTS = b"\xff\xda", b"\xff\xe1"
"""Beginnings of scans and of Exif data in a JPEG file, each of which takes long, however few bytes it has."""
_MOST_PARTS, _BYTES_PER_PART = 100, 1 << 14
"""Limit of them, and bytes of a file for one more: other data has such beginnings by chance, but fewer."""
_MOST_READS = 1 << 16
"""Limit of reads of a file before its pixels: Pillow reads a PNG's chunks, and others' parts, in Python."""
_MAX_WAITING_BYTES = 1 << 28
"""Limit of the files of all images that wait for their turn."""
_MAX_PREPARED_BYTES = 1 << 30
"""Size of prepared images of running requests from which on others wait. The core holds it until they end."""
_POLL_S = 1.0
_MODALITY = "image"

Prepared = Callable[[CodedError | None], None]


class Images:
    """Preparation of requests with images, one after the other in a thread."""

    def __init__(self, config: VllmConfig) -> None:
        # A client's file can cause any number of them, which fill the log and which Python keeps.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        budget = MultiModalBudget(config, MULTIMODAL_REGISTRY, enable_cache=False)
        self._processor = budget.processor
        self._max_embeddings = budget.encoder_cache_size
        self._max_length = config.model_config.max_model_len
        self.limit = min(budget.mm_limits.get(_MODALITY, 0), MAX_IMAGES)
        """Number of images that a request may have."""
        self._lock = threading.Condition()
        self._waiting_bytes = 0
        self._prepared_bytes: dict[str, int] = {}
        """Bytes of requests that have not ended."""
        self._thread = ThreadPoolExecutor(1, "images")

    def submit(
        self,
        images: list[bytes],
        message: EngineCoreRequest,
        prepared: Prepared,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Put the images into ``message``, then call ``prepared`` with None or an error, from a thread.

        Images are not decoded if the request is not wanted any more when its turn comes.
        """
        size_bytes = sum(map(len, images))
        with self._lock:
            is_full = bool(self._waiting_bytes) and self._waiting_bytes + size_bytes > _MAX_WAITING_BYTES
            self._waiting_bytes += 0 if is_full else size_bytes
        if is_full:
            prepared(ImagesWaiting(max_bytes=_MAX_WAITING_BYTES))
        else:
            self._thread.submit(self._run, images, message, prepared, is_wanted)

    def _run(
        self,
        images: list[bytes],
        message: EngineCoreRequest,
        prepared: Prepared,
        is_wanted: Callable[[], bool],
    ) -> None:
        error: CodedError | None = None
        with self._lock:
            while sum(self._prepared_bytes.values()) > _MAX_PREPARED_BYTES and is_wanted():
                self._lock.wait(_POLL_S)
        if is_wanted():
            try:
                self._prepare(images, message)
            except Exception as exc:  # noqa: BLE001 - of vLLM: the request must not wait for ever
                error = as_coded(exc, EngineFailed, ENGINE_KIND)
        with self._lock:
            self._waiting_bytes -= sum(map(len, images))
            if message.mm_features:
                sizes = (MultiModalCache.get_item_size(each.data) for each in message.mm_features)
                self._prepared_bytes[message.request_id] = sum(sizes)
        if not is_wanted():
            self.ended(message.request_id)
        prepared(error)

    def ended(self, key: str) -> None:
        """Let others have the room of a request that has ended. ``key``: vLLM's id of it."""
        with self._lock:
            if self._prepared_bytes.pop(key, None) is not None:
                self._lock.notify_all()

    def _prepare(self, images: list[bytes], message: EngineCoreRequest) -> None:
        """Replace the prompt's places of images by the tokens that the model needs for them.

        Raises E1002 and E1017.
        """
        decoded = decode(images)
        try:
            items = self._processor.info.parse_mm_data({_MODALITY: decoded})
            inputs = ProcessorInputs(message.prompt_token_ids, items)
            result = self._processor.apply(inputs, TimingContext(enabled=False))
        # An assertion if a chat template has no place for an image; models' processors raise anything.
        except Exception as exc:
            reason = f"the model's processor refuses the prompt with them ({single_spaced(exc)[:300]})"
            remedy = "send others, or the message to a model whose chat template has a place for each"
            raise ImageRefused(name=_named(images), reason=reason, remedy=remedy) from exc
        features = self._features(result, images)
        _set_prompt(message, result["prompt_token_ids"], self._max_length)
        message.mm_features = features

    def _features(self, result: Any, images: list[bytes]) -> list[MultiModalFeatureSpec]:
        """Return vLLM's features in the order of the prompt, as vLLM's own front end makes them."""
        places, hashes, data = (result[name] for name in ("mm_placeholders", "mm_hashes", "mm_kwargs"))
        features = [
            MultiModalFeatureSpec(
                data=data[modality][at],
                modality=modality,
                identifier=hashes[modality][at],
                mm_position=place,
                mm_hash=hashes[modality][at],
            )
            for modality, found in places.items()
            for at, place in enumerate(found)
        ]
        # NOTE: the core would wait for ever for room that it does not have.
        largest = max(each.mm_position.get_num_embeds() for each in features)
        if largest > self._max_embeddings:
            reason = (
                f"an image takes {largest} embeddings, and the engine has room for {self._max_embeddings}"
            )
            raise ImageRefused(name=_named(images), reason=reason, remedy="send it with fewer pixels")
        return sorted(features, key=lambda each: each.mm_position.offset)


class _Header(BytesIO):
    """A file of which only the header is read. It fails where that takes too many reads."""

    num_reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.num_reads += 1
        if self.num_reads > _MOST_READS:
            raise ValueError("too many parts")
        return super().read(size)


def decode(images: Sequence[bytes]) -> list[Any]:
    """Decode images as vLLM's own front end does. Raises E1017, for a wrong size before any is decoded."""
    left = _MAX_PIXELS
    for number, data in enumerate(images, 1):
        name = _named(images, number)
        num_parts = sum(map(data.count, _COSTLY_PARTS)) if data.startswith(_JPEG) else 0
        if num_parts > _MOST_PARTS + len(data) // _BYTES_PER_PART:
            reason = f"its file has {num_parts} scans and parts of Exif data"
            raise ImageRefused(name=name, reason=reason, remedy="save it again as a JPEG with one scan")
        try:
            # NOTE: vLLM's reader, which decodes them later: a file may be an image of two formats at once.
            with vllm_image.open_image(_Header(data)) as image:
                if image.format not in (*_FORMATS, _SEVERAL_JPEGS):
                    raise ValueError(image.format)
                short, long = sorted(image.size)
                left -= short * long
        except Image.DecompressionBombError:  # Above Pillow's own limit.
            short, long, left = 1, 1, -1
        except Exception as exc:  # Pillow raises many kinds for a broken header.
            reason = f"it is no image of a known format ({', '.join(_FORMATS)}), or has too many parts"
            raise ImageRefused(name=name, reason=reason, remedy="save it again, or send another") from exc
        if left < 0:
            reason = f"with it the images have more than {_MAX_PIXELS} pixels together"
            raise ImageRefused(name=name, reason=reason, remedy="send smaller or fewer ones")
        if long > _MAX_RATIO * short:
            reason = f"one side has {short} pixels and the other {long}, more than {_MAX_RATIO} times as many"
            raise ImageRefused(name=name, reason=reason, remedy="cut it into parts")
    decoded = []
    for number, data in enumerate(images, 1):
        try:
            decoded.append(ImageMediaIO().load_bytes(data))
        except Exception as exc:
            reason = f"it can't be decoded ({single_spaced(exc)[:200]})"
            raise ImageRefused(name=_named(images, number), reason=reason, remedy="send it whole") from exc
    return decoded


def _named(images: Sequence[bytes], number: int | None = None) -> str:
    """Return the name of an image for errors, or of all."""
    if len(images) == 1:
        return "the image"
    return f"image {number} of {len(images)}" if number else f"one of the {len(images)} images"


def _set_prompt(message: EngineCoreRequest, prompt: list[int], max_length: int) -> None:
    """Set the prompt with its images, and cut the output to the room that is left. Raises E1002."""
    room = max_length - len(prompt)
    if room < 1:
        raise PromptTooLong(prompt_tokens=len(prompt), max_input_tokens=max_length - 1)
    message.prompt_token_ids = prompt
    parameters = message.sampling_params
    parameters.max_tokens = min(parameters.max_tokens, room)
    parameters.min_tokens = min(parameters.min_tokens, room)
