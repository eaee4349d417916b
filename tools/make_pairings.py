"""Makes model_types.json for a version of transformers: defaults by its config classes, pairings by running it.

``python -m tools.make_pairings`` writes what it finds, and prints what changed and what it could not find out; with
``--check`` it writes nothing, and exits with 1 where the table says something else. It needs PyTorch and transformers,
and the package never imports it.

`pairing_layers` gives a query and a key of each class, as they come to the scores, turned and not turned. The second,
sorted, is what left the linear layer, in the order of its weights. The first must be what `rotate_by_table` makes of
that with one pairing, and with no other; and where a token has one position, what `rotate` makes of it by the
frequencies that the class holds. A class that no pairing explains is "neither", and has a note that says why.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from rfrope.data import model_types
from rfrope.data.model_types import has_defaults
from tools.pairing_layers import NEAR, Seen, UndeterminedError, config_classes, made_config, seen_of

PATH = Path(model_types.__file__).with_name("model_types.json")
SIZES = ("hidden_size", "num_attention_heads", "max_position_embeddings", "head_dim", "qk_rope_head_dim")
SIZES = (*SIZES, "qk_nope_head_dim")
KEYS = ("pairing", "out_pairing", "rotated", "pairing_by", "pairing_note")
PAIRINGS = ("half", "interleaved")
TOLERANCE = 2e-6  # relative to the largest feature: the classes work in float32
FLAG = "rope_interleave"  # the key of configs by which some classes choose

_ROTARY_CODE = r"[Rr]otary|freqs_c|[Rr]o[Pp][Ee]\b"
_REORDERED = "published weights are interleaved: transformers reorders their rows when it loads them"
_WEIGHTED = "a norm with a weight for each feature follows the rotation"
_INDEXER = "its indexer, which chooses the keys of each query, pairs halves"
_CODEC = "turns each head by the number of the head, and no token by its position"
NOTES = {
    "axk2": _INDEXER,
    "deepseek_v32": _INDEXER,
    "efficientloftr": "turns all heads as one row of features, so that each has frequencies of its own",
    "gemma4_vision": "in each half of a head, its own two halves make the pairs: one half turns by one axis, the other "
    "by the other",
    "gradium_phonon_tts": _REORDERED,
    "hunyuan_v1_dense": _WEIGHTED,
    "hunyuan_v1_moe": _WEIGHTED,
    "hunyuan_vl_text": "half where all axes of a token have one position, as in text; elsewhere the two features of a "
    f"block turn by different axes. {_WEIGHTED.capitalize()}",
    "kimi_k25_vision": _REORDERED,
    "mistral_large4_text": "its frequencies are multiplied by numbers that the model has learned",
    "nanochat": "half with every angle negated: rotate by the negative frequencies",
    "neucodec": _CODEC,
    "pixtral": "half in its own checkpoints; as a part of mistral_large4, published weights are interleaved, and "
    "transformers reorders their rows when it loads them",
    "qwen2_5_omni_dit": "turns the first head alone",
    "step3p5_vision": _REORDERED,
    "timesfm2_5": f"{_WEIGHTED}, and a scale for each feature of the query",
    "xcodec2": _CODEC,
}
UNLIKE_HEADS = ("efficientloftr", "qwen2_5_omni_dit")  # the first head has a pairing, but the others turn otherwise


# -- which pairing explains what was seen ------------------------------------------------------------------------------


def explanations(seen: Seen) -> list[tuple[str, str, str]]:
    """Every pairing of the linear layer, pairing of the result, and place of the turning features that gives it."""
    from rfrope.rotation import rotate_by_table

    width, found = seen.still.shape[-1], []
    for cos, sin in _columns(seen.cos, seen.sin, width):
        turning = 2 * cos.shape[-1]
        for where in ("first", "last") if turning < width else ("first",):
            part = slice(0, turning) if where == "first" else slice(width - turning, width)
            rest = [i for i in range(width) if i not in range(width)[part]]
            if not _same(seen.still[:, rest], seen.turned[:, rest]):
                continue
            left = np.sort(seen.still[:, part])  # as it left the linear layer
            for pairing, out in product(PAIRINGS, PAIRINGS):
                options = {"pairing": pairing, "out_pairing": out}
                made = rotate_by_table(left, cos, sin, **options)
                if _same(made, seen.turned[:, part]) and _by_frequencies(seen, left, part, cos, sin, options):
                    found.append((pairing, out, where))
    return found


def _columns(cos: np.ndarray, sin: np.ndarray, width: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """A table with one column a block: as it stands, or what a table that holds each column twice repeats."""
    cos, sin = cos[:, :width], sin[:, :width]  # where all heads stand side by side, the first one's
    half = cos.shape[-1] // 2
    for one, other in ((slice(0, half), slice(half, None)), (slice(0, None, 2), slice(1, None, 2))):
        if np.array_equal(cos[:, one], cos[:, other]) and np.array_equal(sin[:, one], sin[:, other]):
            yield cos[:, one], sin[:, one]
    if 2 * cos.shape[-1] <= width:
        yield cos, sin


def _by_frequencies(
    seen: Seen, left: np.ndarray, part: slice, cos: np.ndarray, sin: np.ndarray, options: dict[str, Any]
) -> bool:
    """Whether `rotate` gives the same, by the class's own frequencies, in the order of its table's columns."""
    from rfrope.rotation import rotate

    if seen.positions is None or seen.frequencies is None:
        return True
    near = seen.positions <= NEAR
    angles = np.arctan2(sin, cos)[list(seen.positions).index(1)]
    frequencies = seen.frequencies[np.argmin(np.abs(seen.frequencies - angles[:, None]), axis=-1)]
    factor = float(np.hypot(cos, sin)[0, 0])
    made = rotate(left[near], seen.positions[near], frequencies, scale=factor, **options)
    return _same(made, seen.turned[near, part], 10.0)


def _same(one: np.ndarray, other: np.ndarray, times: float = 1.0) -> bool:
    return bool(np.all(np.abs(one - other) <= times * TOLERANCE * np.max(np.abs(other), initial=1.0)))


def answer(seen: list[Seen]) -> dict[str, Any]:
    """What one model type does: the one explanation of its queries and keys in all kinds of layers, if there is one."""
    found_in = [(one.name, set(explanations(one))) for one in seen]
    if seen and not any(found for _, found in found_in):
        return {"pairing": "neither"}
    common = set.intersection(*(found for _, found in found_in)) if seen else set()
    if len(common) != 1:
        raise UndeterminedError(f"not one answer: {found_in}")
    ((pairing, out_pairing, where),) = common
    found = {"pairing": pairing}
    if out_pairing != pairing:
        found["out_pairing"] = out_pairing
    if where == "last":
        found["rotated"] = "last"
    return found


# -- the table ---------------------------------------------------------------------------------------------------------


def found_for(model_type: str, entry: Mapping[str, Any], classes: dict[str, type]) -> dict[str, Any]:
    """The keys on pairing of a model type, by its classes.

    Parameters
    ----------
    model_type : str
    entry : mapping
        What the table says of it; ``needs`` goes into its config.
    classes : dict of str to type
        As `config_classes` returns them.

    Returns
    -------
    dict
        ``pairing``, and where they apply the other keys of `KEYS`.

    Raises
    ------
    UndeterminedError
        If the installed transformers has no such classes, if they refuse every call, or if more than one pairing
        explains what they do.
    """
    if model_type not in classes:
        raise UndeterminedError("this transformers does not have it")
    kind, needs = classes[model_type], dict(entry.get("needs", {}))
    found = answer(seen_of(model_type, made_config(kind, model_type, **needs)))
    if FLAG in inspect.signature(kind).parameters:
        found["pairing_by"] = {"key": FLAG}
        for value in (False, True):
            other = made_config(kind, model_type, **needs, **{FLAG: value})
            found["pairing_by"][f"if_{value}".lower()] = answer(seen_of(model_type, other))["pairing"]
    if model_type in UNLIKE_HEADS:
        found = {"pairing": "neither"}
    if model_type in NOTES:
        found["pairing_note"] = NOTES[model_type]
    elif found["pairing"] == "neither":
        raise UndeterminedError("no pairing explains what it does, and no note says why")
    return found


def pairing_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The keys on pairing of an entry of the table."""
    return {key: entry[key] for key in KEYS if key in entry}


def defaults_of(kind: type, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes and the RoPE that a config class has by default: those that an entry says, or all for an empty one."""
    saved = json.loads(json.dumps(kind(**dict(entry.get("needs", {}))).to_dict(), default=str))
    names = {key: entry.get("names", {}).get(key) or [key] for key in SIZES}
    held = {key: next((saved[name] for name in names[key] if saved.get(name) is not None), None) for key in SIZES}
    parameters = saved.get("rope_parameters") or {}
    if all(isinstance(one, dict | None) for one in parameters.values()):  # by kind of layer, in any order
        parameters = {kind: one for kind, one in parameters.items() if not entry or kind in entry["rope_parameters"]}
    elif entry:  # keys without effect, and new names of the same, are left out of the table
        parameters = {key: value for key, value in parameters.items() if key in entry["rope_parameters"]}
        parameters |= {"rope_type": "axial"} if "axial" in entry else {}
    held |= {"rope_parameters": parameters or None}
    wanted = [key for key, value in held.items() if value is not None and (key in entry or not entry)]
    return {key: held[key] for key in wanted if not isinstance(entry.get(key), str)}


def _update_defaults(table: dict[str, Any], classes: Mapping[str, type]) -> Iterator[str]:
    """Bring the table's defaults up to date, draft entries of new types with a RoPE, and yield what changed."""
    for model_type, kind in classes.items():
        entry = table.get(model_type, {})
        if entry and "rope_parameters" not in entry:
            continue
        try:
            found = defaults_of(kind, entry)
        except Exception as error:  # classes of others, whose checks raise errors of their own
            yield f"{model_type}: its config cannot be made ({type(error).__name__}: {str(error)[:80]})"
            continue
        if changed := {key: value for key, value in found.items() if entry.get(key) != value}:
            if not entry and "rope_parameters" not in changed:
                continue
            said = "its defaults are" if entry else "a new type; read its class for layers, windows and names:"
            yield f"{model_type}: {said} {json.dumps(changed)[:400]}"
            table[model_type] = entry | changed


def _without_entry(table: Mapping[str, Any], classes: dict[str, type]) -> Iterator[tuple[str, str]]:
    """Model types with rotary code and without an entry, and why they need none."""
    from rfrope.models import from_config

    for model_type, kind in classes.items():
        code = Path(inspect.getfile(kind).replace("configuration_", "modeling_"))
        if model_type in table or not code.exists() or not re.search(_ROTARY_CODE, code.read_text("utf-8")):
            continue
        try:
            parts = from_config(json.loads(json.dumps(kind().to_dict(), default=str)))
        except (AttributeError, ImportError, TypeError, ValueError) as error:
            yield model_type, f"from_config reads none in its config ({str(error).partition(';')[0][:60]})"
        else:
            yield (
                model_type,
                f"from_config reads its parts ({', '.join(sorted({part.source.model.model_type for part in parts}))})",
            )


def _lines(table: Mapping[str, Any]) -> str:
    rows = (f" {json.dumps(name)}: {json.dumps(table[name], sort_keys=True)}" for name in sorted(table))
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description="The keys on pairing in model_types.json, by running transformers.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table says otherwise")
    check = parser.parse_args(arguments).check
    import transformers

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    warnings.simplefilter("ignore")
    table, classes = json.loads(PATH.read_text("utf-8")), config_classes()
    changes = list(_update_defaults(table, classes))
    print(*changes, sep="\n")
    differ = sum("cannot be made" not in one for one in changes)
    for model_type, entry in table.items():
        if not has_defaults(entry):
            continue  # its code is not in transformers, or has no RoPE
        try:
            found = found_for(model_type, entry, classes)
        except UndeterminedError as error:
            print(f"{model_type}: not run, left as it is, {pairing_of(entry) or 'without a pairing'}: {error}")
            continue
        if found != pairing_of(entry):
            differ += 1
            print(f"{model_type}: the table has {pairing_of(entry) or 'nothing'}, its classes do {found}")
        table[model_type] = {key: value for key, value in entry.items() if key not in KEYS} | found
    for model_type, reason in _without_entry(table, classes):
        print(f"{model_type}: no entry: {reason}")
    print(f"{differ} of {len(table)} entries differ from transformers {transformers.__version__}")
    if not check:
        PATH.write_text(_lines(table), encoding="utf-8")
    return int(check and differ > 0)


if __name__ == "__main__":
    sys.exit(main())
