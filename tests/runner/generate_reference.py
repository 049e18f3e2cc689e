"""Run in the engine environment: ``generate_reference.py ENGINE_DIR``.

For each line of stdin, ``{"messages": [...], "max_tokens": 24}``, it prints the greedy answer of
transformers' ``generate`` as a line of JSON: the prompt by the tokenizer's own chat template, its tokens, the
tokens and text of the answer. Imports nothing of this project.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], local_files_only=True, dtype=torch.float32)
    for line in sys.stdin:
        asked = json.loads(line)
        prompt = tokenizer.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True)
        encoded = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        generated = model.generate(**encoded, max_new_tokens=asked["max_tokens"], do_sample=False)
        ids = generated[0, encoded.input_ids.shape[1] :].tolist()
        answer = {
            "prompt": prompt,
            "input_ids": encoded.input_ids[0].tolist(),
            "output_ids": ids,
            "text": tokenizer.decode(ids, skip_special_tokens=True),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
