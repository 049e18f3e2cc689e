#!/usr/bin/env python3
"""Train the tiny Llama model of builder/examples/tiny from folders of plain text.

The result is a model folder as Hugging Face's libraries write it: config.json, generation_config.json,
model.safetensors (float16), tokenizer.json and tokenizer_config.json. Needs torch, transformers and tokenizers;
uses a GPU when there is one.
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

PAD, BOS, EOS, USER, ASSISTANT = "<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [PAD, BOS, EOS, USER, ASSISTANT]  # ids 0-4; </s> is 2, as in Llama 2

# Characters that get a token of their own although the texts hardly contain them: two, three and four bytes long.
WHOLE_CHARACTERS = "éèêàâçñßäöüÄÖÜ£§°«»–—‘’“”…€✓❤" + "абвдеиклмнопрстуя" + "你好世界中文日本語人" + "😀😂🙂😊😍🤔👋👍🎉🚀🌍🐳🔥"

# Messages that are not the assistant's, a system prompt first of all, are joined into one user turn.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '</s>' }}"
    "{% else %}"
    "{% if loop.first or loop.previtem['role'] == 'assistant' %}{{ '<|user|>' }}{% else %}{{ ' ' }}{% endif %}"
    "{{ message['content'] }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CHAT_SHARE = 0.3  # of the passages, which become a user's first sentence and an assistant's continuation
PASSAGE_CHARACTERS = (120, 700)  # a passage ends with the first sentence past a length drawn from here
VIEWS = 4  # times the texts are cut into passages, each time elsewhere
MAX_POSITIONS = 1024
WINDOWS = (256, 1024)  # tokens per training window, in turn: many starts, and every position
PROMPTS = ("Once upon a time", "The ship sailed", "What is machine learning?", "My fellow citizens")

Passage = tuple[str, str]  # what the user says (may be empty), what follows


def read_paragraphs(paths: list[Path], skip: re.Pattern[str] | None) -> list[str]:
    """The cleaned paragraphs of all *.txt files below the paths, in the order of their names."""
    files = [file for path in paths for file in (sorted(path.rglob("*.txt")) if path.is_dir() else [path])]
    if not files:
        raise SystemExit(f"no .txt file in {', '.join(map(str, paths))}")
    paragraphs = [p for file in files for p in clean(file.read_text(encoding="utf-8"))]
    return [p for p in paragraphs if not (skip and skip.search(p))]


def clean(text: str) -> Iterator[str]:
    """Paragraphs of running prose: unwrapped, set with typographic quotes and dashes; no headings, no boilerplate."""
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


def cut_passages(paragraphs: list[str], rng: random.Random) -> Iterator[Passage]:
    """Runs of whole sentences of drawn lengths; some are split after the first sentence into a user's part and an answer."""
    sentences: list[str] = []
    target = rng.randint(*PASSAGE_CHARACTERS)
    for paragraph in paragraphs:
        for i, sentence in enumerate(split_sentences(paragraph)):
            sentences.append(sentence if not sentences else ("\n\n" if i == 0 else " ") + sentence)
            if sum(map(len, sentences)) >= target:
                is_chat = len(sentences) > 1 and rng.random() < CHAT_SHARE
                user = sentences.pop(0) if is_chat else ""
                yield user, "".join(sentences).strip()
                sentences, target = [], rng.randint(*PASSAGE_CHARACTERS)


def train_tokenizer(paragraphs: list[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer: any text has a token sequence and comes back from it unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Often enough to be merged into one token each, however many bytes they have.
    repeated = [" ".join(WHOLE_CHARACTERS)] * 20_000
    tokenizer.train_from_iterator([*paragraphs, *repeated], trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, passages: list[Passage]) -> tuple[torch.Tensor, torch.Tensor]:
    """All passages as one run of token ids, each ended by </s>, and the positions at which they begin."""
    texts = [f"{USER}{user}{ASSISTANT}{text}{EOS}" if user else text + EOS for user, text in passages]
    encoded = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    starts = torch.tensor([0, *(len(ids) for ids in encoded)][:-1]).cumsum(0)
    return torch.tensor([token for ids in encoded for token in ids]), starts


def new_model(args: argparse.Namespace) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=args.vocab_size,
        hidden_size=args.hidden_size,
        intermediate_size=args.intermediate_size,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL_TOKENS.index(PAD),
        bos_token_id=SPECIAL_TOKENS.index(BOS),
        eos_token_id=SPECIAL_TOKENS.index(EOS),
    )
    return LlamaForCausalLM(config)


def loss_of(model: LlamaForCausalLM, windows: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy, in nats per token, of predicting windows[:, 1:] from what precedes each."""
    with torch.autocast(windows.device.type, torch.bfloat16, enabled=windows.is_cuda):
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def draw_windows(tokens: torch.Tensor, starts: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """Windows that begin with a passage: every other one with <s> before it, since a caller may add one or not."""
    picked = starts[torch.randint(len(starts), (count,), device=starts.device)].clamp(max=len(tokens) - length)
    windows = tokens[picked[:, None] + torch.arange(length, device=tokens.device)]
    windows[::2] = windows[::2].roll(1, dims=1)
    windows[::2, 0] = SPECIAL_TOKENS.index(BOS)
    return windows


@torch.no_grad()
def validation_loss(model: LlamaForCausalLM, tokens: torch.Tensor, length: int = 512) -> float:
    windows = tokens[: len(tokens) // length * length].view(-1, length)
    losses = [loss_of(model, batch) * len(batch) for batch in windows.split(32)]
    return float(sum(losses)) / len(windows)


def train(model: LlamaForCausalLM, tokens: torch.Tensor, starts: torch.Tensor, held_out: torch.Tensor, args: argparse.Namespace) -> None:
    """Train in place and leave the weights of the step with the lowest validation loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=args.weight_decay)
    warmup = max(1, min(200, args.steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.02 + 0.49 * (1 + math.cos(math.pi * step / args.steps)))
    )
    best, best_weights, began = math.inf, model.state_dict(), time.monotonic()
    for step in range(1, args.steps + 1):
        length = WINDOWS[step % len(WINDOWS)]
        loss = loss_of(model, draw_windows(tokens, starts, args.batch_tokens // length, length))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % args.report_every == 0 or step == args.steps:
            held_out_loss = validation_loss(model, held_out)
            print(f"step {step} loss {loss.item():.4f} validation {held_out_loss:.4f} {time.monotonic() - began:.0f} s", flush=True)
            if held_out_loss < best:
                best, best_weights = held_out_loss, {k: v.detach().clone() for k, v in model.state_dict().items()}
    model.load_state_dict(best_weights)


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    # NOTE: transformers 4 knows these two keys by their earlier names only.
    config |= {"torch_dtype": config["dtype"], "rope_theta": config["rope_parameters"]["rope_theta"]}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
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


def write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def print_samples(folder: Path) -> None:
    """Continuations by the saved weights, in float32 on the CPU: greedy, then at temperature 0.7."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for prompt in (*PROMPTS, f"{USER}Tell me about the whale.{ASSISTANT}"):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        for sampling in ({"do_sample": False}, {"do_sample": True, "temperature": 0.7, "top_k": 0}):
            output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=150, **sampling)[0]
            print(f"\n[{prompt}]{tokenizer.decode(output[ids.shape[1] :].tolist(), skip_special_tokens=False)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+", help="text files, or folders of *.txt files (UTF-8)")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--skip", type=lambda text: re.compile(text, re.IGNORECASE), help="leave out paragraphs that match this regex")
    parser.add_argument("--steps", type=int, default=6000, help="optimizer steps")
    parser.add_argument("--batch-tokens", type=int, default=65536, help="tokens per step")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.1, help="AdamW's weight decay")
    parser.add_argument("--vocab-size", type=int, default=2560, help="tokens in the vocabulary")
    parser.add_argument("--hidden-size", type=int, default=128, help="width of the model")
    parser.add_argument("--intermediate-size", type=int, default=320, help="width of the feed-forward part")
    parser.add_argument("--layers", type=int, default=8, help="decoder layers")
    parser.add_argument("--heads", type=int, default=4, help="attention heads")
    parser.add_argument("--kv-heads", type=int, default=2, help="key/value heads, each shared by heads / kv-heads")
    parser.add_argument("--report-every", type=int, default=250, help="steps between two validation losses")
    parser.add_argument("--seed", type=int, default=1, help="of every random choice")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    paragraphs = read_paragraphs(args.texts, args.skip)
    held_out = [p for i, p in enumerate(paragraphs) if i // 20 % 50 == 49]  # 2 %, in blocks of 20 paragraphs
    kept = [p for i, p in enumerate(paragraphs) if i // 20 % 50 != 49]
    tokenizer = train_tokenizer(kept, args.vocab_size)
    tokens, starts = encode(tokenizer, [passage for _ in range(VIEWS) for passage in cut_passages(kept, rng)])
    held_out_tokens, _ = encode(tokenizer, list(cut_passages(held_out, rng)))
    model = new_model(args).to(device)
    print(f"{sum(map(len, kept))} characters, {len(tokens) // VIEWS} tokens, {len(starts) // VIEWS} passages, {len(held_out_tokens)} tokens held out")
    print(f"{model.num_parameters()} parameters, on {device}", flush=True)
    train(model, tokens.to(device), starts.to(device), held_out_tokens.to(device), args)
    save(model.cpu(), tokenizer, args.out)
    print(f"saved weights: validation {validation_loss(model.float(), held_out_tokens):.4f} nats a token")
    print_samples(args.out)


if __name__ == "__main__":
    main()
