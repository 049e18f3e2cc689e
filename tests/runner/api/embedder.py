"""An API that embeds: in front of the vLLM adapter, whose stand-in needs neither a model nor a GPU.

As a program, it prints its URL and serves until its input ends.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.engine.pooling_files import write_pooling
from tests.runner.api.alone import APIAlone
from tests.runner.engines.vllm.vllm_engines import make_python, make_vllm_directory
from tests.runner.paced_engine import PacedModel, make_tokenizer

MAX_TOKENS = 2000


def make_embedding_model(folder: Path) -> PacedModel:
    """Its vectors have three numbers, or two."""
    engine = make_vllm_directory(folder / "engine")
    config = {"model_type": "bert", "matryoshka_dimensions": [2]}
    write_pooling(engine, size=3, max_tokens=MAX_TOKENS, config=config)
    (engine / "model.safetensors").touch()
    tokenizer = make_tokenizer()
    tokenizer.save(str(engine / "tokenizer.json"))
    return PacedModel(engine, folder / "none", tokenizer)


def environment(folder: Path) -> dict[str, str]:
    python = make_python(folder / "python", sys.executable)
    return {"COG_TRITON_ENGINE_PYTHON": python, "OPENAI_MODELS": "small"}


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        place = Path(name)
        server = APIAlone(make_embedding_model(place), place, **environment(place))
        print(server.url, flush=True)
        sys.stdin.read()
        server.close()
