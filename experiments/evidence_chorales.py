"""Chorales: ``python experiments/evidence_chorales.py --output experiments/results/evidence_chorales.csv``.

Task (c) of evidence_protocol.rst. The notes of Bach's chorales in four parts, which come with music21, in the
order of their onsets: what is to be predicted is by how many semitones the next note is higher than the last. The
position of a note is its onset and its pitch; its content says nothing of either, so that a chorale reads alike in any
key. A model is trained on 64 notes, and reads 64 and 192.

Each run takes less than a minute of one core. The file keeps what is done: the same command goes on after an
interruption. Beside it come a table (``.inc``) and a figure (``.svg``).
"""

from __future__ import annotations

import importlib.util
import math
import pathlib
import sys
import zipfile
from collections.abc import Mapping
from functools import cache
from xml.etree import ElementTree

import numpy as np
import torch
from evidence import Arm, Batch, Task, kernels, ladders
from evidence import main as evidence
from evidence import run as run_task
from torch import nn
from trained import Row

import rfrope

PARTS, TRAINED, READ = 4, 64, 192  # voices; notes
UNIT = 0.5  # quarter notes for each unit of position: eighth notes; pitches are in semitones
DURATIONS = (0.25, 0.5, 1.0, 1.5, 2.0)  # quarter notes; a note has the first that it does not exceed, or is longer
STEPS_BETWEEN = (0.0, 0.25, 0.5, 1.0)  # likewise from one onset to the next
INPUTS = 2 * (PARTS + len(DURATIONS) + 1) + len(STEPS_BETWEEN) + 1
WIDEST = 36  # semitones up or down; larger steps count as this one
SAME = 8  # steps of the soprano at the beginning: chorales that have them in common are on one melody
BATCH, STEPS, SEEDS = 16, 600, 5
BASES = (10.0, 100.0, 1000.0)
SCALES = (2.0, 4.0, 8.0)  # eighth notes, of onsets; semitones too where kernels are isotropic
CONTEXT = (64, 37)
PITCHES = {"": "gaussian(scale=6.0)", ", octaves": "gaussian(scale=12.0) * periodic(period=12.0, scale=1.0)"}
PAIRS = (
    ("matern", "axial"),
    ("matern, octaves", "matern"),
    ("matern, polar", "axial, polar"),
    ("matern, octaves, polar", "matern, polar"),
    ("matern, polar", "drawn, polar"),
)
_STEPS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


def notes_of(score: ElementTree.Element) -> np.ndarray | None:
    """Return onset, pitch, duration and part ``(notes, 4)`` of a MusicXML score, by onset and part.

    Onsets and durations are in quarter notes, pitches in semitones, 60 for the middle c; tied notes are one. None for
    a score that has not four parts.
    """
    parts, found = score.findall("part"), []
    if len(parts) != PARTS:
        return None
    for voice, part in enumerate(parts):
        at, divisions = 0.0, 1.0
        for one in (one for measure in part.iter("measure") for one in measure):
            divisions = float(one.findtext("divisions") or divisions) if one.tag == "attributes" else divisions
            length = float(one.findtext("duration") or 0.0) / divisions
            if one.tag == "note" and (pitch := one.find("pitch")) is not None and one.find("grace") is None:
                height = 12 * (1 + int(pitch.findtext("octave"))) + _STEPS[pitch.findtext("step")]
                height += float(pitch.findtext("alter") or 0.0)
                at -= length if one.find("chord") is not None else 0.0
                ended = any(tie.get("type") == "stop" for tie in one.findall("tie"))
                if ended and found and found[-1][1::2] == [height, voice]:
                    found[-1][2] += length
                else:
                    found.append([at, height, length, voice])
            at += -length if one.tag == "backup" else length
    return np.asarray(sorted(found, key=lambda note: (note[0], note[3])))


@cache
def chorales() -> dict[str, list[np.ndarray]]:
    """Return the notes of chorales to train on, of validation and of the test; none is on a melody of another part.

    Those of validation and of the test have more than `READ` notes.
    """
    found = importlib.util.find_spec("music21")
    if found is None:
        raise SystemExit("the chorales come with music21, which is not installed: pip install --no-deps music21")
    melodies: dict[tuple[float, ...], list[np.ndarray]] = {}
    for path in sorted((pathlib.Path(found.origin).parent / "corpus" / "bach").glob("*.mxl")):
        with zipfile.ZipFile(path) as file:
            name = next(one for one in file.namelist() if one.endswith("xml") and not one.startswith("META-INF"))
            notes = notes_of(ElementTree.fromstring(file.read(name)))
        if notes is not None and len(notes) > TRAINED:
            soprano = notes[notes[:, 3] == 0.0, 1]
            melodies.setdefault(tuple(np.diff(soprano)[:SAME].tolist()), []).append(notes)
    parts: dict[str, list[np.ndarray]] = {"train": [], "validation": [], "test": []}
    for i, same in enumerate(melodies[key] for key in sorted(melodies)):
        part = ("test", "train", "validation", "train", "train")[i % 5]
        parts[part] += [notes for notes in same if part == "train" or len(notes) > READ]
    return parts


def one_of(values: np.ndarray, ends: tuple[float, ...]) -> np.ndarray:
    """Return signs ``(..., len(ends) + 1)``: of the first end that a value does not exceed, or of the last place."""
    return np.eye(len(ends) + 1)[np.searchsorted(ends, values - 1e-6)]


def batch(notes: np.ndarray) -> Batch:
    """Return tokens of notes ``(windows, tokens + 1, 4)``, their onsets and pitches, and the steps to the next.

    A token says voice and duration, those of the next note, and how long after it that begins.
    """
    voices, lengths = np.eye(PARTS)[notes[..., 3].astype(int)], one_of(notes[..., 2], DURATIONS)
    own = np.concatenate([voices, lengths], -1)
    between = one_of(np.diff(notes[..., 0], axis=1), STEPS_BETWEEN)
    tokens = np.concatenate([own[:, :-1], own[:, 1:], between], -1)
    steps = np.clip(np.diff(notes[..., 1], axis=1), -WIDEST, WIDEST).astype(int) + WIDEST
    places = notes[:, :-1, :2] / (UNIT, 1.0)
    return Batch(torch.from_numpy(tokens).float(), torch.from_numpy(places), torch.from_numpy(steps))


def draw(rng: np.random.Generator) -> Batch:
    """Return windows to train on, from chorales that are drawn by their length."""
    made, lengths = chorales()["train"], np.asarray([len(one) - TRAINED for one in chorales()["train"]])
    which = rng.choice(len(made), BATCH, p=lengths / lengths.sum())
    starts = rng.integers(lengths[which])
    return batch(np.stack([made[i][at : at + TRAINED + 1] for i, at in zip(which, starts, strict=True)]))


@cache
def readings(part: str) -> dict[str, Batch]:
    """Return the first notes of chorales: cut into windows of the trained length, and whole."""
    whole = np.stack([one[: READ + 1] for one in chorales()[part]])
    cut = np.stack([whole[:, at : at + TRAINED + 1] for at in range(0, READ, TRAINED)], 1)
    return {f"{TRAINED} notes": batch(cut.reshape(-1, *cut.shape[2:])), f"{READ} notes": batch(whole)}


def surprise(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each window, in bits for each note."""
    found = nn.functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")
    return found.mean(-1) / math.log(2.0)


def task() -> Task:
    """Return the task, whose error is in bits for each note."""
    return Task(
        inputs=INPUTS,
        outputs=2 * WIDEST + 1,
        draw=draw,
        parts=readings,
        loss=surprise,
        error=surprise,
        primary=(f"{TRAINED} notes",),
        steps=STEPS,
        repeats={f"{TRAINED} notes": READ // TRAINED},
        pooled=False,
        causal=True,
    )


def axial(n: int, base: float) -> rfrope.Rope:
    """Return half of the waves along each axis."""
    return rfrope.axial(*[rfrope.geometric(n // 2, base=base)] * 2)


def arms() -> Mapping[str, Arm]:
    """Return arms by their names."""
    onsets = ladders(lambda n, base: rfrope.axial(rfrope.geometric(n, base=base), np.zeros(0)), BASES)
    made = {"none": Arm({"": None}), "onsets alone": Arm(onsets), "axial": Arm(ladders(axial, BASES))}
    made |= {
        "axial, learned": Arm(ladders(axial, BASES), learned=True),
        "axial, polar": Arm(ladders(axial, BASES), True),
    }
    made["axial, polar, learned"] = Arm(ladders(axial, BASES), polar=True, learned=True)
    for contents, polar in (("", False), (", polar", True)):
        for name, pitch in PITCHES.items():
            found = kernels(f"axes(matern(nu=1.5, scale={{}}), {pitch})", SCALES, CONTEXT)
            made["matern" + name + contents] = Arm(found, polar, designed=True)
    drawn = kernels("gaussian(scale={}, ndim=2)", SCALES, CONTEXT, "iid")
    return made | {"drawn": Arm(drawn, designed=True), "drawn, polar": Arm(drawn, polar=True, designed=True)}


def run(which: tuple[str, str, float, int], short: bool = False) -> Row:
    """Train and read an arm at a setting and a rate, by a seed."""
    return run_task(task(), arms(), which, short)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    own = dict(
        columns=[f"{TRAINED} notes", f"{READ} notes"], form=".3f", unit="bits for each note", seeds=SEEDS, pairs=PAIRS
    )
    return evidence(__doc__, "evidence_chorales.py", arguments, run, arms, **own)


if __name__ == "__main__":
    sys.exit(main())
