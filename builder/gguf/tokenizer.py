"""Translation of GGUF's vocabulary to ``tokenizer.json`` and ``tokenizer_config.json``.

A GGUF file names the way in which text is split before merges (``tokenizer.ggml.pre``), and does not describe
it. A way that is not listed here is refused: the tokenizer would work, and give the model other tokens than
those of its training.
"""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from builder.gguf.header import GgufFile
from errors.coded_error import CodedError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SUFFIXES}|{_LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_QWEN2 = rf"{_SUFFIXES}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
_SPLITS = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": _TEKKEN,
}
_TEMPLATE = "tokenizer.chat_template"
_WHOLE_WORDS_FIRST = (_LLAMA3, _TEKKEN)
"""Kinds whose words that are in the vocabulary are not merged from parts."""
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")
_GPT2 = ("gpt-2", "phi-2", "olmo")


def tokenizer_of(file: GgufFile) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer and its ``tokenizer_config.json``. Raises GgufUnsupported, ModelUnusable."""
    tokens: tuple[str, ...] = file.get("tokenizer.ggml.tokens", tuple) or ()
    kinds: tuple[int, ...] = file.get("tokenizer.ggml.token_type", tuple) or (_NORMAL,) * len(tokens)
    if not tokens or len(kinds) != len(tokens) or not all(isinstance(token, str) for token in tokens):
        raise file.unusable("its GGUF file has no whole vocabulary")
    vocabulary = {
        token: number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != _UNUSED
    }
    makers = {"gpt2": _byte_level, "llama": _sentencepiece}
    model = str(file.metadata.get("tokenizer.ggml.model"))
    if model not in makers:
        raise file.unsupported(f"a tokenizer of the kind {model!r}")
    try:
        tokenizer = makers[model](file, vocabulary, tokens)
    except CodedError:
        raise
    except Exception as exc:  # NOTE: the class that tokenizers raises
        raise file.unusable(f"its GGUF file's vocabulary is wrong ({exc})") from exc
    marked = list(zip(tokens, kinds, strict=True))
    special = (_CONTROL, _UNKNOWN)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in marked if kind in special]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind in marked
            if kind == _USER_DEFINED
        ]
    )
    return tokenizer, _finish(file, tokenizer, tokens, is_sentencepiece=model == "llama")


def _byte_level(file: GgufFile, vocabulary: dict[str, int], tokens: tuple[str, ...]) -> Tokenizer:
    name = str(file.metadata.get("tokenizer.ggml.pre"))
    split = _SPLITS.get(name)
    if split is None and name not in (*_SINGLE_DIGITS, *_GPT2):
        raise file.unsupported(f"the pre-tokenizer {name!r}")
    pairs = [tuple(str(merge).split(" ")) for merge in file.get("tokenizer.ggml.merges", tuple) or ()]
    if any(len(pair) != 2 for pair in pairs):
        raise file.unusable("its GGUF file has a merge that is no pair")
    merges = [(pair[0], pair[1]) for pair in pairs]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split in _WHOLE_WORDS_FIRST))
    if split == _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    before: list[Any] = []
    if split is not None:
        before = [pre_tokenizers.Split(Regex(split), behavior="isolated")]
    elif name in _SINGLE_DIGITS:
        before = [pre_tokenizers.Digits(individual_digits=True)]
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, vocabulary: dict[str, int], tokens: tuple[str, ...]) -> Tokenizer:
    scores = file.get("tokenizer.ggml.scores", tuple) or ()
    if len(scores) != len(tokens):
        raise file.unusable("its GGUF file has no score for each token")
    unknown = _token(file, tokens, "unknown")
    merges = [
        (-scores[number], vocabulary[left], vocabulary[right], left, right)
        for token, number in vocabulary.items()
        for left, right in ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        if left in vocabulary and right in vocabulary
    ]
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            [(left, right) for *_, left, right in sorted(merges)],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    before: list[Any] = [normalizers.Prepend(_SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", _SPACE)])
    after: list[Any] = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return tokenizer


def _finish(
    file: GgufFile, tokenizer: Tokenizer, tokens: tuple[str, ...], *, is_sentencepiece: bool
) -> dict[str, Any]:
    """Let ``tokenizer`` add the tokens of begin and end, and return its ``tokenizer_config.json``."""
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {role: _token(file, tokens, key) for role, key in roles.items()}
    is_llama3 = _SPLITS.get(str(file.metadata.get("tokenizer.ggml.pre"))) in _WHOLE_WORDS_FIRST
    adds_bos = file.get("tokenizer.ggml.add_bos_token", bool)
    adds_bos = is_sentencepiece or is_llama3 if adds_bos is None else adds_bos
    added = {"bos": adds_bos, "eos": bool(file.get("tokenizer.ggml.add_eos_token", bool))}
    begin, end = ([special[role]] if added[role] and special[role] else [] for role in added)
    used = [(token, tokens.index(token)) for token in (*begin, *end) if token is not None]
    if used:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*begin, "$A", *end],
            pair=[
                *begin,
                "$A",
                *end,
                *(f"{token}:1" for token in begin),
                "$B:1",
                *(f"{token}:1" for token in end),
            ],
            special_tokens=used,
        )
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": token for role, token in special.items() if token is not None},
    }
    if templates := _chat_templates(file):
        named = [{"name": name, "template": template} for name, template in templates.items()]
        config["chat_template"] = named if {*templates} - {"default"} else templates["default"]
    return config


def _chat_templates(file: GgufFile) -> dict[str, str]:
    """Return templates by name; others than ``default`` are ``tokenizer.chat_template.NAME``."""
    found = {"default": file.get(_TEMPLATE, str)}
    for key in file.metadata:
        if key.startswith(f"{_TEMPLATE}."):
            found[key.removeprefix(f"{_TEMPLATE}.")] = file.get(key, str)
    return {name: template for name, template in found.items() if template}


def _token(file: GgufFile, tokens: tuple[str, ...], role: str) -> str | None:
    number = file.get(f"tokenizer.ggml.{role}_token_id", int)
    if number is not None and not 0 <= number < len(tokens):
        raise file.unusable(
            f"its tokenizer.ggml.{role}_token_id is {number}, but it has {len(tokens)} tokens"
        )
    return None if number is None else tokens[number]
