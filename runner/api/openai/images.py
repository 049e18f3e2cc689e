"""Images in the messages of a chat: taken out of the messages, within bounds, and fetched."""

import asyncio
import base64
import re
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from engine.download.address import allows_private_urls
from engine.download.body import Body, Transfer
from engine.download.http import Client
from engine.kinds import supports
from errors.coded_error import CodedError
from errors.download import AddressRefused, SourceUnsupported
from errors.engines import EngineCrashed
from errors.requests import ImageRefused, ImagesUnsupported
from runner.api.generations import PromptRequest, RemoteImage
from runner.api.openai.bodies import Object
from runner.api.served import Served
from runner.api.validation import convert
from runner.chat.messages import IMAGE_PARTS
from runner.engines.protocol.checks import check_images

_DATA_URL = re.compile(r"data:image/[\w.+-]+(;[^;,]{0,99}){0,9};base64,", re.IGNORECASE)
_WEB_URL = re.compile("https?://", re.IGNORECASE)
_MAX_URL_LENGTH = 8000
"""Limit of URLs that are fetched: to parse one of megabytes takes seconds."""
_TOLD = {AddressRefused: "its host is not public", SourceUnsupported: "it is no valid URL of a host"}
"""Reasons in place of an error's own sentence, which has an address, or a remedy for builders."""
_MARK_DIGITS = 24
_MAX_BYTES = 8 << 20
"""Limit of all images of a request that are fetched."""
_READ_BYTES = 1 << 18
_FETCH_S = 30.0
"""Limit of the time in which all images of a request are fetched."""
_TRANSFER = Transfer(attempts=2, timeout_s=10.0, longest_retry_after_s=0.0)
_NUM_THREADS = 16

_threads = ThreadPoolExecutor(_NUM_THREADS, "images")
"""Threads that fetch: slow servers of images make only requests with images wait."""


class _ImageURL(msgspec.Struct):
    url: str


class _Part(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: _ImageURL


@dataclass(frozen=True)
class TakenImages:
    """Messages with a mark in place of each image, and the images in their order."""

    messages: list[Object]
    images: Sequence[bytes | RemoteImage] = ()
    mark: str = ""
    """Digits that no client knows: no message can have them by itself."""


def take_images(messages: list[Object], served: Served, num_texts: int) -> TakenImages:
    """Take the images out of messages, which stay as they are if there are none.

    ``num_texts``: how often the engine gets them. Raises E1016 before anything is decoded, E1005, E1017,
    E2107.
    """
    parts = [
        (f"messages[{at}].content[{index}]", part)
        for at, message in enumerate(messages)
        if isinstance(content := message.get("content"), list)
        for index, part in enumerate(content)
        if _is_image(part)
    ]
    if not parts:
        return TakenImages(messages)
    if served.engine.ready is None and supports(served.engine_kind, "images"):
        raise EngineCrashed(engine_kind=served.engine_kind, reason="it is not ready yet", was_ready=False)
    check_images(len(parts) * num_texts, served.engine_kind, served.engine.max_images, parts[0][0])
    urls = [convert(part, _Part, place).image_url.url for place, part in parts]
    # Other APIs have no such places, so that their errors have the number alone.
    names = [f"{place} (image {number} of {len(parts)})" for number, (place, _) in enumerate(parts, 1)]
    takes_public = served.settings.image_urls == "public"
    images = [_image(name, url, takes_public) for name, url in zip(names, urls, strict=True)]
    mark = str(secrets.randbelow(9 * 10**_MARK_DIGITS) + 10**_MARK_DIGITS)
    marked = {"type": "text", "text": mark}
    taken = [
        {**message, "content": [marked if _is_image(part) else part for part in content]}
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]
    return TakenImages(taken, images, mark)


def _is_image(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in IMAGE_PARTS


def _image(place: str, url: str, takes_public: bool) -> bytes | RemoteImage:
    if match := _DATA_URL.match(url):
        try:
            return base64.b64decode(url[match.end() :], validate=True)
        except ValueError as exc:
            reason = f"its data is not valid base64 ({exc})"
            remedy = "encode it with padding, and without line breaks and the URL-safe characters - and _"
            raise ImageRefused(name=place, reason=reason, remedy=remedy) from exc
    if not takes_public or not _WEB_URL.match(url) or len(url) > _MAX_URL_LENGTH:
        allowed = f"as an http or https URL of at most {_MAX_URL_LENGTH} characters"
        other = allowed if takes_public else "have the operator set IMAGE_URLS=public"
        remedy = f"send it as data:image/png;base64,... (or another type of image), or {other}"
        reason = "its URL is no data URL with an image in base64"
        raise ImageRefused(name=place, reason=reason, remedy=remedy)
    return RemoteImage(place, url)


async def fetched(found: PromptRequest) -> PromptRequest:
    """Return the request with all images. Raises E1017. If it is cancelled, the connections are closed."""
    if not found.images:
        return found
    remote = [each for each in found.images if isinstance(each, RemoteImage)]
    content = iter(await _fetch(remote) if remote else ())
    whole = [next(content) if isinstance(each, RemoteImage) else each for each in found.images]
    return replace(found, request=replace(found.request, images=whole), images=())


async def not_counted(found: PromptRequest) -> PromptRequest:
    """Return a request without images. Raises E1016."""
    if found.images:
        reason = "the tokens of images are known only once the engine has them"
        remedy = "send text alone, or read the usage of an answer"
        raise ImagesUnsupported(name="A part of a message", reason=reason, remedy=remedy)
    return found


async def _fetch(remote: Sequence[RemoteImage]) -> list[bytes]:
    fetch = _Fetch(remote)
    try:
        running = asyncio.get_running_loop().run_in_executor(_threads, fetch.run)
        return await asyncio.wait_for(running, _FETCH_S)
    except asyncio.TimeoutError as exc:
        reason = f"it did not arrive within {_FETCH_S:g} s"
        raise ImageRefused(name=fetch.image.place, reason=reason, remedy="send it as a data URL") from exc
    finally:
        fetch.abort()


class _Fetch:
    """A fetch of all images of a request, one after the other, in a thread."""

    def __init__(self, images: Sequence[RemoteImage]) -> None:
        self._images = images
        self.image = images[0]
        """The image that is fetched now."""
        self._only_public = not allows_private_urls()
        self._stop = threading.Event()
        self._client: Client | None = None

    def abort(self) -> None:
        self._stop.set()
        if self._client is not None:
            self._client.pools.abort()

    def run(self) -> list[bytes]:
        """Fetch. Raises E1017, never with the address of a host that is not public."""
        content: list[bytes] = []
        for image in self._images:
            self.image = image
            try:
                content.append(self._get(image, _MAX_BYTES - sum(map(len, content))))
            except ImageRefused:
                raise
            except CodedError as exc:
                told = _TOLD.get(type(exc)) or exc.sentence
                reason = f"its URL can't be fetched ({told.rstrip('.')})"
                raise ImageRefused(name=image.place, reason=reason, remedy="send it as a data URL") from exc
        return content

    def _get(self, image: RemoteImage, most_bytes: int) -> bytes:
        client = Client(
            image.url, only_public=self._only_public, timeout_s=_TRANSFER.timeout_s, connections=1
        )
        self._client = client
        body, content, buffer = Body(client, _TRANSFER, self._stop), bytearray(), bytearray(_READ_BYTES)
        try:
            while not self._stop.is_set() and (count := body.readinto(memoryview(buffer))):
                content += buffer[:count]
                if len(content) > most_bytes:
                    reason = f"the images of a request have more than {_MAX_BYTES} bytes together"
                    raise ImageRefused(name=image.place, reason=reason, remedy="send smaller or fewer ones")
        finally:
            body.close()
            client.pools.close_idle()
        return bytes(content)
