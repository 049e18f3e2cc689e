"""OpenAI's own Python package asks for embeddings, which it decodes from base64 unless told otherwise."""

import subprocess
from collections.abc import Iterator

import openai
import pytest

from tests.clients.conftest import ROOT

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    command = [ROOT / ".venv" / "bin" / "python", "-m", "tests.runner.api.embedder"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        url = server.stdout.readline().strip()
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        server.stdin.close()


def test_texts_and_token_ids_are_embedded_and_a_refusal_names_the_field(client: openai.OpenAI) -> None:
    asked = ["Once upon a time", "there was a small engine"]
    by_default = client.embeddings.create(model="small", input=asked)
    as_numbers = client.embeddings.create(model="small", input=asked, encoding_format="float")
    assert by_default.usage.prompt_tokens == as_numbers.usage.total_tokens > 2
    for one, other in zip(by_default.data, as_numbers.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding)
    found = client.embeddings.create(model="small", input=[[3, 4], [4, 3]], dimensions=2)
    assert [each.embedding for each in found.data] == [pytest.approx([0.6, 0.8]), pytest.approx([0.8, 0.6])]
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="small", input="a", dimensions=99)
    assert (caught.value.code, caught.value.param) == ("E1005", "dimensions")
