#!/usr/bin/env python3
"""Train the tiny Llama model of builder/examples/tiny from folders of plain text.

The result is a model folder as Hugging Face's libraries write it: config.json, generation_config.json,
model.safetensors (float16), tokenizer.json and tokenizer_config.json. Needs torch, transformers and
tokenizers; uses a GPU when there is one.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 4096
MAX_POSITIONS = 1024
WINDOWS = (256, 1024)  # tokens per training window, in turn: many starts, and every position
PASSAGE_CHARACTERS = (200, 600)  # a passage ends with the first sentence past a length drawn from here
VIEWS = 4  # times the texts are cut into passages, each time elsewhere
CHAT_SHARE = 0.3  # of the passages: a user says their first sentence, the assistant the rest

PAD, BOS, EOS, USER, ASSISTANT = "<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [PAD, BOS, EOS, USER, ASSISTANT]  # ids 0-4; </s> is 2, as in Llama 2

# Two, three and four bytes long: each gets a token of its own although the texts hardly contain them.
WHOLE_CHARACTERS = (
    "éèêàâçñßäöüÄÖÜ£§°«»–—‘’“”…€✓❤абвдеиклмнопрстуя你好世界中文日本語人😀😂🙂😊😍🤔👋👍🎉🚀🌍🐳🔥"
)

# Messages that are not the assistant's, a system prompt first of all, are joined into one user turn.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '</s>' }}"
    "{% else %}"
    "{{ '<|user|>' if loop.first or loop.previtem['role'] == 'assistant' else ' ' }}"
    "{{ message['content'] }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

SAMPLE_PROMPTS = (
    "Once upon a time",
    "The ship sailed",
    "What is machine learning?",
    "My fellow citizens",
    f"{USER}Tell me about the whale.{ASSISTANT}",
)


def read_paragraphs(paths: list[Path], skip: re.Pattern[str] | None) -> list[str]:
    """The cleaned paragraphs of all *.txt files below the paths, in the order of their names."""
    files = [file for path in paths for file in (sorted(path.rglob("*.txt")) if path.is_dir() else [path])]
    if not files:
        raise SystemExit(f"no .txt file in {', '.join(map(str, paths))}")
    paragraphs = [paragraph for file in files for paragraph in clean(file.read_text(encoding="utf-8"))]
    return [paragraph for paragraph in paragraphs if not (skip and skip.search(paragraph))]


def clean(text: str) -> Iterator[str]:
    """Paragraphs of running prose, unwrapped and typeset; no headings, no Project Gutenberg boilerplate."""
    text = re.sub(r"(?s)^.*?\*\*\* ?START OF.*?\*\*\*", "", text.replace("\r\n", "\n"))
    text = re.sub(r"(?s)(\*\*\* ?END OF|End of (the )?Project Gutenberg).*$", "", text)
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = typeset(" ".join(paragraph.split()))
        if len(paragraph) > 30 and re.search(r"[a-z]", paragraph) and re.search(r"[.!?][”’)]*$", paragraph):
            yield paragraph


def typeset(text: str) -> str:
    """Curly quotes, em dashes and ellipses in place of their ASCII stand-ins; emphasis marks removed."""
    text = re.sub(r"[_*]+", "", text)
    text = re.sub(r"\s*-{2,}\s*", "—", text).replace("...", "…").replace("`", "‘")
    text = re.sub(r"(^|[\s(—‘])\"(?=[\w‘—…])", r"\1“", text).replace('"', "”")
    return re.sub(r"(^|[\s(—“])'(?=\w)", r"\1‘", text).replace("'", "’")


def split_sentences(paragraph: str) -> list[str]:
    return re.split(r"(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.)(?:(?<=[.!?])|(?<=[.!?][”’])) (?=[“‘A-Z])", paragraph)


def cut_passages(paragraphs: list[str], rng: random.Random) -> Iterator[str]:
    """Runs of whole sentences of drawn lengths, each ended by </s>; some are cut into two chat turns."""
    sentences: list[str] = []
    target = rng.randint(*PASSAGE_CHARACTERS)
    for paragraph in paragraphs:
        for i, sentence in enumerate(split_sentences(paragraph)):
            sentences.append(sentence if not sentences else ("\n\n" if i == 0 else " ") + sentence)
            if sum(map(len, sentences)) < target:
                continue
            if len(sentences) > 1 and rng.random() < CHAT_SHARE:
                yield f"{USER}{sentences[0]}{ASSISTANT}{''.join(sentences[1:]).strip()}{EOS}"
            else:
                yield "".join(sentences) + EOS
            sentences, target = [], rng.randint(*PASSAGE_CHARACTERS)


def train_tokenizer(paragraphs: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer: any text has a token sequence and comes back from it unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Often enough, and each apart from the next, that the bytes of every one are merged into one token.
    repeated = ["\n".join(WHOLE_CHARACTERS)] * 20_000
    tokenizer.train_from_iterator([*paragraphs, *repeated], trainer)
    assert all(len(tokenizer.encode(character).ids) == 1 for character in WHOLE_CHARACTERS)
    return tokenizer


def encode(tokenizer: Tokenizer, passages: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """All passages as one run of token ids, and the positions at which they begin."""
    encoded = [encoding.ids for encoding in tokenizer.encode_batch_fast(passages)]
    starts = torch.tensor([0, *(len(ids) for ids in encoded)][:-1]).cumsum(0)
    return torch.tensor([token for ids in encoded for token in ids]), starts


def new_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL_TOKENS.index(PAD),
        bos_token_id=SPECIAL_TOKENS.index(BOS),
        eos_token_id=SPECIAL_TOKENS.index(EOS),
    )
    return LlamaForCausalLM(config)


def draw_windows(tokens: torch.Tensor, starts: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """Windows that begin with a passage: every other one has <s> before it, as a prompt may or may not."""
    picked = torch.randint(len(starts), (count, 1), device=starts.device)
    first = starts[picked].clamp(max=len(tokens) - length)
    windows = tokens[first + torch.arange(length, device=tokens.device)]
    windows[::2] = windows[::2].roll(1, dims=1)
    windows[::2, 0] = SPECIAL_TOKENS.index(BOS)
    return windows


def loss_of(model: LlamaForCausalLM, windows: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy, in nats per token, of predicting windows[:, 1:] from what precedes each."""
    with torch.autocast(windows.device.type, torch.bfloat16, enabled=windows.is_cuda):
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def validation_loss(model: LlamaForCausalLM, tokens: torch.Tensor, length: int = 512) -> float:
    windows = tokens[: len(tokens) // length * length].view(-1, length)
    with torch.no_grad():
        losses = [loss_of(model, batch).item() * len(batch) for batch in torch.split(windows, 32)]
    return float(sum(losses) / len(windows))


def train(
    model: LlamaForCausalLM,
    tokens: torch.Tensor,
    starts: torch.Tensor,
    held_out: torch.Tensor,
    args: argparse.Namespace,
) -> None:
    """Train in place; the learning rate rises, then falls along a cosine to a fiftieth of its peak."""
    steps: int = args.steps
    warmup = max(1, min(200, steps // 10))

    def learning_rate_factor(step: int) -> float:
        falling = 0.02 + 0.49 * (1 + math.cos(math.pi * step / steps))
        return min((step + 1) / warmup, falling)

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=args.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor)
    began = time.monotonic()
    for step in range(1, steps + 1):
        length = WINDOWS[step % len(WINDOWS)]
        loss = loss_of(model, draw_windows(tokens, starts, args.batch_tokens // length, length))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % args.report_every == 0 or step == steps:
            validation, elapsed_s = validation_loss(model, held_out), time.monotonic() - began
            print(
                f"step {step} loss {loss.item():.4f} validation {validation:.4f} {elapsed_s:.0f} s",
                flush=True,
            )


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.float16).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    # NOTE: transformers 4 knows these two keys by their earlier names only.
    config |= {"torch_dtype": config["dtype"], "rope_theta": config["rope_parameters"]["rope_theta"]}
    write_json(folder / "config.json", config)
    token_ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / "generation_config.json", token_ids)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "additional_special_tokens": [USER, ASSISTANT],
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def print_samples(folder: Path) -> None:
    """Continuations by the saved weights, in float32 on the CPU: greedy, then at temperature 0.7."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for prompt in SAMPLE_PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        for options in ({"do_sample": False}, {"do_sample": True, "temperature": 0.7, "top_k": 0}):
            output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=150, **options)
            print(f"\n{tokenizer.decode(output[0].tolist(), skip_special_tokens=False)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("texts", type=Path, nargs="+", help="text files, or folders of *.txt files, in UTF-8")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--skip", help="leave out paragraphs in which this regular expression matches")
    parser.add_argument("--steps", type=int, default=2500, help="optimizer steps")
    parser.add_argument("--batch-tokens", type=int, default=16384, help="tokens per step")
    parser.add_argument("--learning-rate", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.1, help="AdamW's weight decay")
    parser.add_argument(
        "--report-every", type=int, default=250, help="steps between two reports of the losses"
    )
    parser.add_argument("--seed", type=int, default=1, help="of every random choice")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    paragraphs = read_paragraphs(args.texts, re.compile(args.skip, re.IGNORECASE) if args.skip else None)
    kept = [paragraph for i, paragraph in enumerate(paragraphs) if i // 20 % 50 != 49]
    held_out = [
        paragraph for i, paragraph in enumerate(paragraphs) if i // 20 % 50 == 49
    ]  # 2 %, 20 at a time
    tokenizer = train_tokenizer(kept)
    tokens, starts = encode(tokenizer, [text for _ in range(VIEWS) for text in cut_passages(kept, rng)])
    held_out_tokens, _ = encode(tokenizer, list(cut_passages(held_out, rng)))
    model = new_model().to(device)
    print(f"{sum(map(len, kept))} characters, {len(tokens) // VIEWS} tokens, {len(starts) // VIEWS} passages")
    print(f"{model.num_parameters()} parameters, on {device}", flush=True)
    train(model, tokens.to(device), starts.to(device), held_out_tokens.to(device), args)
    save(model.cpu(), tokenizer, args.out)
    loss = validation_loss(model.float(), held_out_tokens)
    bits = loss / math.log(2) * len(held_out_tokens) / sum(map(len, held_out))
    print(f"saved weights: validation {loss:.4f} nats per token, {bits:.3f} bits per character")
    print_samples(args.out)


if __name__ == "__main__":
    main()
