"""Run in the engine environment: ``llama_server_reference.py GGUF_FILE``.

It does what ``generate_reference.py`` does, by llama.cpp's own server in the wheel of xllamacpp.
"""

import json
import sys
from typing import Any
from urllib.request import Request, urlopen

import xllamacpp

END_ID = 2


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_parallel, params.n_ctx, params.port = 1, 2048, 0
    server = xllamacpp.Server(params)

    def ask(path: str, **body: object) -> Any:
        headers = {"Content-Type": "application/json"}
        url = f"{server.listening_address}/{path}"
        with urlopen(Request(url, json.dumps(body).encode(), headers)) as response:
            return json.load(response)

    for line in sys.stdin:
        asked = json.loads(line)
        prompt = ask("apply-template", messages=asked["messages"])["prompt"]
        ids = ask("tokenize", content=prompt, add_special=False, parse_special=True)["tokens"]
        found = ask(
            "completion",
            prompt=ids,
            n_predict=asked["max_tokens"],
            temperature=0,
            top_k=1,
            return_tokens=True,
            cache_prompt=False,
        )
        output = [token for token in found["tokens"] if token != END_ID]
        answer = {
            "prompt": prompt,
            "input_ids": ids,
            "output_ids": [*output, *([END_ID] if found["stop_type"] == "eos" else [])],
            "text": found["content"],
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
