"""Images in the messages of a chat."""

from errors.requests import ImagesUnsupported
from runner.api.openai.bodies import Object
from runner.api.served import Served


def check_images(messages: list[Object], served: Served) -> None:
    """Raise E1016 for the first image in the messages."""
    for at, message in enumerate(messages):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and part.get("type") == "image_url":
                raise ImagesUnsupported(
                    name=f"messages[{at}].content[{index}]",
                    reason=f"the {served.engine_kind} engine takes none",
                    remedy="send text alone",
                )
