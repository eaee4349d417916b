"""A tiny model with a tokenizer, in a folder: what a command that loads models is given."""

import pathlib

import tiny_models

WORDS = ["the", "key", "is", "at", "a", "lag", "before", "its", "query", "and", "turns", "with", "every", "position"]


def save(folder: pathlib.Path) -> pathlib.Path:
    """Save a model of two layers of four heads, and a tokenizer of a few words; return the folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(["[UNK]", *dict.fromkeys(WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tiny_models.made().save_pretrained(folder)
    tiny_models.transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def text(words: int, seed: int = 0) -> str:
    """Return a text of so many words."""
    import random

    return " ".join(random.Random(seed).choices(WORDS, k=words))
