"""Run in the engine environment: ``generate_reference.py ENGINE_DIR``.

For each line of stdin, ``{"messages": [...], "max_tokens": 24}``, it prints the greedy answer of
transformers' ``generate`` as a line of JSON: the prompt by the tokenizer's own chat template, its tokens, the
tokens and text of the answer, and what it took. Imports nothing of this project.
"""

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class _Times:
    """A streamer: ``generate`` gives it the prompt first, then each token."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def put(self, value: Any) -> None:
        self.at_s.append(time.perf_counter())

    def end(self) -> None:
        pass


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], local_files_only=True, dtype=torch.float32)
    for line in sys.stdin:
        asked = json.loads(line)
        prompt = tokenizer.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True)
        encoded = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        times, cpu_s, start_s = _Times(), time.process_time(), time.perf_counter()
        generated = model.generate(
            **encoded, max_new_tokens=asked["max_tokens"], do_sample=False, streamer=times
        )
        end_s = time.perf_counter()
        count = encoded.input_ids.shape[1]
        ids = generated[0, count:].tolist()
        answer = {
            "prompt": prompt,
            "input_ids": encoded.input_ids[0].tolist(),
            "output_ids": ids,
            "text": tokenizer.decode(ids, skip_special_tokens=True),
            "first_token_s": times.at_s[1] - start_s,
            "duration_s": end_s - start_s,
            "cpu_s": time.process_time() - cpu_s,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
