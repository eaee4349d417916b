"""Models and texts from the disk, for the command line."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from rfrope._core.arguments import printable


def load(path: str) -> tuple[Any, Any]:
    """Load a model in float32 and its tokenizer from a folder or a GGUF file, without the network.

    Raises
    ------
    ValueError
        If there is no such folder or file, or transformers cannot load it, with its reason.
    """
    if not os.path.exists(path):
        raise ValueError(f"{printable(path)} does not exist; expected a folder with a model, or a GGUF file")
    folder, options = path, {"local_files_only": True}
    if os.path.isfile(path):
        if not path.lower().endswith(".gguf"):
            raise ValueError(f"{printable(path)} is a file; expected a folder with a model, or a GGUF file")
        folder, name = os.path.split(os.path.abspath(path))
        options["gguf_file"] = name  # type: ignore[assignment]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of other projects, while files are read
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    except Exception as error:  # whatever libraries raise for files that are not what they say
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{printable(path)} does not load: {reason}") from None
    return model.eval(), tokenizer


def cut_documents(tokenizer: Any, texts: Sequence[str], count: int, tokens: int) -> list[list[int]]:
    """Return documents of `tokens` tokens: the beginning of each text, or `count` separate stretches of a single text.

    Raises
    ------
    ValueError
        If the texts are too short.
    """
    ids = [tokenizer(text, verbose=False)["input_ids"] for text in texts]
    if len(ids) == 1:
        (whole,) = ids
        if len(whole) < count * tokens:
            raise ValueError(
                f"the text has {len(whole)} tokens; expected {count * tokens} for {count} documents of {tokens}: give "
                "a longer text, several texts, or fewer tokens"
            )
        return [whole[i * len(whole) // count :][:tokens] for i in range(count)]
    shortest = min(range(len(ids)), key=lambda i: len(ids[i]))
    if len(ids[shortest]) < tokens:
        raise ValueError(
            f"text {shortest + 1} has {len(ids[shortest])} tokens; expected {tokens}: leave it out, or take fewer"
        )
    return [one[:tokens] for one in ids]
