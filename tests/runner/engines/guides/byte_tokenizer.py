"""A tokenizer for the small random models: a token for each byte, some for pairs, and an end token."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_ID = 280
_PAIRS = ["ab", "aa", '{"', '":', "},", '",', "12", "the", "Ġa"]


def save_byte_tokenizer(directory: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, "th", *_PAIRS])}
    merges = [(pair[:-1], pair[-1]) for pair in ["th", *_PAIRS]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fillers = [AddedToken(f"<filler {index}>", special=True) for index in range(len(vocabulary), END_ID)]
    tokenizer.add_special_tokens([*fillers, AddedToken("<end>", special=True)])
    assert tokenizer.token_to_id("<end>") == END_ID
    tokenizer.save(str(directory / "tokenizer.json"))
