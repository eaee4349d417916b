"""Recall at a distance; README.md has the command.

Tasks (b) and (c) of polar.rst. Into a text notes are put, each a token that says a key and a value;
later a key is asked for, and its value is to be predicted, beside the text itself. With ``--task chain`` the text is
drawn from a chain whose next symbol depends on two of those before it; with ``--task code`` it is Python's library.
A model is trained on 128 tokens and read on 2048, at the distances of training and beyond them.

Each run takes about three minutes of one core. The file keeps what is done: the same command goes on after an
interruption. Beside it come a table (``.inc``) and a figure (``.svg``).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from arms import ARMS, READ, TRAINED, model, recovered, written
from torch import nn
from trained import Reader, Row, apart, fit
from tuned import APART
from tuned import main as tuned

BASE, KEYS, VALUES = 256, 16, 8  # tokens of the text, keys and values
TOKENS = BASE + KEYS * VALUES + KEYS + VALUES
NOTES = 6  # in a text
NEAR = dict(asked=3, first=96, longest=120)  # how often each is asked for, where notes stand, and the largest distance
FAR = dict(asked=40, first=TRAINED, longest=READ - TRAINED - 1)  # likewise, of long texts
DISTANCES = (0, 120, 256, 512, 1024, 2048)  # between which recall is averaged
BATCH, STEPS = 32, 1200
SYMBOLS, BACK, CERTAIN = 8, (1, 3), 0.9  # the chain: its next symbol is one that those so far back decide, or any
ARMS_OF = {
    "code": (
        "none",
        "none, polar contents",
        "RoPE",
        "RoPE, twice the width",
        "RoPE, window",
        "RoPE with window, and none",
        "ALiBi",
        "FoPE",
        "PoPE",
        "PoPE, published scale",
        "PoPE and none",
        "polar, log_uniform",
        "polar, gaussian ladder",
        "polar, matern ladder",
        "polar, cauchy ladder",
        "polar, gaussian and constant",
    ),
    "chain": (
        "RoPE",
        "RoPE with window, and none",
        "ALiBi",
        "PoPE",
        "PoPE and none",
        "polar, gaussian ladder",
        "polar, gaussian and constant",
    ),
}


def note(key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return the token that says a key and its value."""
    return BASE + key * VALUES + value


def ask(key: np.ndarray) -> np.ndarray:
    """Return the token that asks for a key."""
    return BASE + KEYS * VALUES + key


def answer(value: np.ndarray) -> np.ndarray:
    """Return the token of a value."""
    return BASE + KEYS * VALUES + KEYS + value


def plant(
    text: np.ndarray, notes: int, asked: int, first: int, longest: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Put notes and asks into a text, which stays in its order; what no longer fits is cut off.

    Parameters
    ----------
    text : ndarray of int, (tokens + 1,)
        Tokens below `BASE`.
    notes, asked : int
        How many notes, and how often each is asked for.
    first : int
        Notes stand among so many tokens.
    longest : int
        The largest distance from a note to an ask.
    rng : numpy.random.Generator
        Draws keys, no two alike, and values and places.

    Returns
    -------
    tokens, targets : ndarray of int, (tokens,)
        What is read, and what is to be predicted from it: the next token, but at an ask the value of its key. Answers
        are not read, so that none helps another.
    kinds : ndarray of int, (tokens,)
        Of each target: 0 for text, the distance for an answer, and -1 for notes and asks, which nothing foretells.
    """
    made, wanted, back = np.full(len(text), -1), np.full(len(text), -1), np.zeros(len(text), np.int64)
    for key in rng.permutation(KEYS)[:notes]:
        value, place = rng.integers(VALUES), rng.choice(np.flatnonzero(made[:first] < 0))
        made[place] = note(key, value)
        asks = rng.choice(np.flatnonzero(made[place + 1 : min(place + 1 + longest, len(text) - 1)] < 0), asked, False)
        asks += place + 1
        made[asks], wanted[asks], back[asks] = ask(key), answer(value), asks - place
    free = made < 0
    made[free] = text[: int(free.sum())]
    asking = back[:-1] > 0
    targets = np.where(asking, wanted[:-1], made[1:])
    return made[:-1], targets, np.where(asking, back[:-1], np.where(free[1:], 0, -1))


def planted(
    texts: Iterable[np.ndarray], notes: int, asked: int, first: int, longest: int, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, targets and kinds ``(texts, tokens)``, as `plant` makes them."""
    made = [plant(text, notes, asked, first, longest, rng) for text in texts]
    return tuple(torch.from_numpy(np.stack(one)) for one in zip(*made, strict=True))


@cache
def chain() -> tuple[np.ndarray, list[np.ndarray]]:
    """Return symbols to train on, and two sets of 24 texts ``(24, READ + 1)``, of a chain that is always the same."""
    rng = np.random.default_rng(27)
    follows = rng.integers(SYMBOLS, size=(SYMBOLS, SYMBOLS))
    rows, columns = 256, 4 * (READ + 1)
    drawn = rng.integers(SYMBOLS, size=(rows, columns))
    known = rng.random((rows, columns)) < CERTAIN
    for at in range(max(BACK), columns):
        near, far = (drawn[:, at - back] for back in BACK)
        drawn[:, at] = np.where(known[:, at], follows[near, far], drawn[:, at])
    return drawn[:208].reshape(-1), [drawn[first : first + 24, -READ - 1 :] for first in (208, 232)]


def material(task: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return tokens to train on, and texts of validation and of the test ``(24, READ + 1)``."""
    if task == "chain":
        return chain()
    text, held = apart(READ, 512)
    return text.numpy(), [one.numpy() for one in held]


@cache
def readings(task: str, part: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Return what is read of validation (0) or of the test (1): texts of the trained length, and long ones.

    Each document gives four texts of the trained length, made as in training, and a long one.
    """
    rng, documents = np.random.default_rng([part, len(task)]), material(task)[1][part]
    near = [document[start : start + TRAINED + 1] for document in documents for start in range(0, READ, READ // 4)]
    return planted(near, NOTES, **NEAR, rng=rng), planted(documents, NOTES, **FAR, rng=rng)


def train(model: Reader, task: str, seed: int, rate: float, steps: int) -> None:
    """Train on the mean loss of text and that of answers, added up; notes and asks are read and not predicted.

    Texts have one note at first, and one more after each 24th of the steps, up to `NOTES`.
    """
    text, rng = material(task)[0], np.random.default_rng(seed)

    def loss(step: int) -> torch.Tensor:
        starts, notes = rng.integers(len(text) - TRAINED - 1, size=BATCH), min(NOTES, 1 + 24 * step // max(steps, 24))
        windows = (text[start : start + TRAINED + 1] for start in starts)
        tokens, targets, kinds = planted(windows, notes, **NEAR, rng=rng)
        logits = model(tokens).flatten(0, 1)
        found = nn.functional.cross_entropy(logits, targets.flatten(), reduction="none").view_as(targets)
        return found[kinds == 0].mean() + found[kinds > 0].mean()

    fit(model, loss, rate, steps)


@torch.no_grad()
def read(model: Reader, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each target ``(texts, tokens)`` in bits, and whether it is the likeliest token."""
    losses, right = [], []
    for some, wanted in zip(tokens.split(4), targets.split(4), strict=True):  # for the memory of scores
        logits = model(some)
        losses.append(nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none"))
        right.append(logits.argmax(-1) == wanted)
    return torch.cat(losses).numpy() / math.log(2.0), torch.cat(right).numpy()


def means(losses: np.ndarray, kinds: np.ndarray, beyond: bool) -> dict[str, float]:
    """Return means over what is foretold: all of it, text, and answers; `beyond` the trained length, or all.

    Of text beyond the trained length are its tokens from there on, and of answers those to notes further back.
    """
    later, least = np.arange(losses.shape[1]) >= (TRAINED if beyond else 0), NEAR["longest"] if beyond else 0
    where, text, asked = ("beyond" if beyond else "within"), (kinds == 0) & later, kinds > least
    return {
        where: losses[(kinds >= 0) & later].mean(),
        f"text {where}": losses[text].mean(),
        f"recall {where}": losses[asked].mean(),
    }


def run(which: tuple[str, float, int], short: bool = False, task: str = "code") -> Row:
    """Train an arm at a rate and read 16 times the trained length: for seeds apart validation alone."""
    torch.set_num_threads(1)
    name, rate, seed = which
    made = model(ARMS[name], seed, TOKENS)
    some = readings(task, 0)[0][0]
    before = recovered(made, some)
    train(made, task, seed, rate, 3 if short else STEPS)
    row = {}
    for part in range(1 if seed in APART else 2):
        for beyond, found in enumerate(readings(task, part)):
            tokens, targets, kinds = (one[: 2 if short else None] for one in found)
            losses, right = read(made, tokens, targets)
            kinds = kinds.numpy()
            where, own = "beyond" if beyond else "within", means(losses, kinds, bool(beyond))
            row |= own if part else {f"validation {where}": own[where]}
        if part:
            for least, most in pairwise(DISTANCES):
                these = (kinds > least) & (kinds <= most)
                row |= {f"recall to {most}": losses[these].mean(), f"right to {most}": right[these].mean()}
            later = (kinds >= 0) & (np.arange(READ) >= TRAINED)
            each = np.sum(losses * later, 1) / np.sum(later, 1)
            row |= {f"document {i}": one for i, one in enumerate(each)}
    return {part: f"{value:.5f}" for part, value in row.items()} | written(before, recovered(made, some))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    task = argparse.ArgumentParser(add_help=False)
    task.add_argument("--task", choices=sorted(ARMS_OF), required=True, help="what notes are put into")
    columns = ["within", "beyond", "text within", "text beyond", "recall within", "recall beyond"]
    arms = ARMS_OF[task.parse_known_args(arguments)[0].task]
    drawn = {f"right to {most}": most for most in DISTANCES[1:]}, "largest distance (tokens)", "share of right answers"
    own = dict(parts=columns, drawn=drawn, arms=arms, parser=task, taken=("task",))
    return tuned(__doc__, "train_recall.py", arguments, run, **own)


if __name__ == "__main__":
    sys.exit(main())
