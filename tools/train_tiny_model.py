#!/usr/bin/env python3
"""Train the weights and the tokenizer of builder/examples/tiny from folders of plain text.

Writes a model folder with config.json, generation_config.json and tokenizer_config.json of the example. Needs
torch, transformers and tokenizers; uses a GPU if there is one.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

EXAMPLE = Path(__file__).resolve().parents[1] / "builder" / "examples" / "tiny" / "model"
VOCAB_SIZE = 4096
BATCH_TOKENS = 16384
PEAK_LEARNING_RATE = 4e-3
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


def read_paragraphs(paths: list[Path], skip: re.Pattern[str] | None) -> list[str]:
    """The paragraphs of all *.txt files below the paths, in the order of their names."""
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


def train(model: LlamaForCausalLM, tokens: torch.Tensor, starts: torch.Tensor, steps: int) -> None:
    """Train in place; the learning rate rises, then falls along a cosine to a fiftieth of its peak."""
    warmup = max(1, min(200, steps // 10))

    def learning_rate_factor(step: int) -> float:
        return min((step + 1) / warmup, 0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor)
    for step in range(1, steps + 1):
        length = WINDOWS[step % len(WINDOWS)]
        loss = loss_of(model, draw_windows(tokens, starts, BATCH_TOKENS // length, length))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0 or step == steps:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.float16).save_pretrained(folder)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        shutil.copyfile(EXAMPLE / name, folder / name)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path, nargs="+", help="text files, or folders of *.txt files, in UTF-8")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--skip", help="leave out paragraphs in which this regular expression matches")
    parser.add_argument("--steps", type=int, default=2500, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of every random choice (default: %(default)s)")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    paragraphs = read_paragraphs(args.texts, re.compile(args.skip, re.IGNORECASE) if args.skip else None)
    tokenizer = train_tokenizer(paragraphs)
    passages = [text for _ in range(VIEWS) for text in cut_passages(paragraphs, rng)]
    tokens, starts = encode(tokenizer, passages)
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(EXAMPLE)).to(device)
    print(f"{len(tokens) // VIEWS} tokens, {model.num_parameters()} parameters, on {device}", flush=True)
    train(model, tokens.to(device), starts.to(device), args.steps)
    save(model.cpu(), tokenizer, args.out)


if __name__ == "__main__":
    main()
