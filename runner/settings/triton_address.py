"""Address of a Triton whose model has NVIDIA's tensor contract."""

import re

from pydantic import BaseModel, ConfigDict

from errors.settings import InvalidSetting
from runner.settings.fields import HIGHEST_PORT

_ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?")
_GRPC_PORT = 8001
EXPECTED = f"HOST:PORT of a Triton's gRPC API (port {_GRPC_PORT} by default; its HTTP port is another)"


class TritonAddress(BaseModel):
    """Address of a Triton; its ``model`` has NVIDIA's tensor contract."""

    model_config = ConfigDict(frozen=True)

    host: str
    port: int
    model: str
    is_external: bool = True
    """True if the runner did not start it."""

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_external_triton(text: str, model: str) -> TritonAddress:
    """Parse ``HOST:PORT``. Raises E1006."""
    match = _ADDRESS.fullmatch(text)
    port = int(match["port"] or _GRPC_PORT) if match is not None else 0
    if match is None or not 1 <= port <= HIGHEST_PORT:
        raise InvalidSetting(name="--triton", expected=EXPECTED, value=text)
    return TritonAddress(host=match["host"].strip("[]"), port=port, model=model)
