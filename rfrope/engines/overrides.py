"""Options and keys with which each engine runs a model by given ``rope_parameters``: one source, many spellings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from rfrope._core.arguments import named, show, whole
from rfrope.engines import formats, observed
from rfrope.engines.observed import BESIDE, SCALES
from rfrope.scaling import schemes

TYPED = ("transformers", "vLLM", "SGLang", "llama.cpp", "MLX-LM")  # engines that take options or keys
_OPTIONS = {
    "vLLM": "--max-model-len {} --hf-overrides {}",
    "SGLang": "--context-length {} --json-model-override-args {}",
}
_FLAGS = {"rope_theta": "--rope-freq-base", "factor": "--rope-scale"}
_YARN = {"original_max_position_embeddings": "--yarn-orig-ctx"}
_YARN |= {"beta_fast": "--yarn-beta-fast", "beta_slow": "--yarn-beta-slow"}


def override(engine: str, rope_parameters: Mapping[str, Any], context: int, *, part: str = "") -> str:
    """Return what to type so that an engine runs a model with these ``rope_parameters``.

    Parameters
    ----------
    engine : {"transformers", "vLLM", "SGLang", "llama.cpp", "MLX-LM"}
        In any spelling.
    rope_parameters : dict
        Names of transformers 5: ``rope_type``, ``rope_theta`` and the keys of the scheme.
    context : int
        Number of positions.
    part : str
        Part of the config that holds them, such as ``"text_config"``; engines ignore an override at another level.

    Returns
    -------
    str
        Options of a command line, or keys of config.json; "" if the engine has no options for this scheme. ARCH stands
        for the ``general.architecture`` of a GGUF.

    Raises
    ------
    ValueError
        If the engine is unknown, `context` is not positive, or a key of YaRN is not read by the engine, or has no flag.
    TypeError
        If an argument is of another type.

    See Also
    --------
    engines.export, models.check

    Examples
    --------
    >>> yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    >>> override("llama.cpp", yarn, 131072)
    '-c 131072 --rope-scaling yarn --rope-freq-base 1000000 --rope-scale 4 --yarn-orig-ctx 32768'
    """
    name = named("engine", engine, TYPED)
    if not isinstance(rope_parameters, Mapping):
        raise TypeError(f"rope_parameters is {show(rope_parameters)}; expected a dict")
    if not isinstance(part, str):
        raise TypeError(f"part is {show(part)}; expected the name of a part of a config, such as 'text_config'")
    made, context = _say_yarn(name, dict(rope_parameters)), whole("context", context, 1)
    if name in _OPTIONS:
        return _OPTIONS[name].format(context, shlex.quote(_nest(part, {"rope_parameters": made})))
    if name == "llama.cpp":
        return _type_llama_cpp(made, context)
    if name == "transformers":
        keys = {"rope_parameters": made, "max_position_embeddings": context}
        return f"config.json, in place of rope_scaling: {_nest(part, keys)}"
    keys = {key: made.pop(key) for key in BESIDE if key in made}
    keys |= {"rope_scaling": None if made.get("rope_type") == "default" else made, "max_position_embeddings": context}
    return f"config.json: {_nest(part, keys)}"


def _say_yarn(engine: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of YaRN that an engine reads: its attention factor as a ratio of scales, or as one number."""
    if parameters.get("rope_type") != "yarn" or engine == "transformers":
        return parameters
    if parameters.get("factor") is None:
        raise ValueError("rope_parameters lacks factor; 'yarn' needs it")
    reads = {*_YARN, "attention_factor"}
    if engine != "llama.cpp":
        reads = {key for rule in observed.find_rules(engine, "", "yarn").values() for key in rule.get("reads", ())}
    factor, given = parameters["factor"], {key: parameters.get(key) for key in ("attention_factor", *SCALES)}
    if "mscale" not in reads and given["attention_factor"] is None and all(given[key] for key in SCALES):
        parameters["attention_factor"] = schemes.sharpen_yarn(factor, *(parameters[key] for key in SCALES))
    elif "attention_factor" not in reads and given["attention_factor"] is not None:
        parameters |= formats.split_attention(factor, parameters.pop("attention_factor"))
    parameters = {key: value for key, value in parameters.items() if key not in SCALES or key in reads}
    for key, usual in formats.RAMP.items():
        if key not in reads and parameters.get(key) not in (None, usual):
            raise ValueError(
                f"rope_parameters holds {key} = {show(parameters[key])}, which {engine} does not read under 'yarn'; "
                f"expected {usual}, or divisors by rfrope.engines.export"
            )
    return parameters


def _nest(part: str, keys: dict[str, Any]) -> str:
    """Return keys as JSON, inside the part of the config that holds them."""
    for name in reversed(part.split(".") if part else []):
        keys = {name: keys}
    return json.dumps(keys)


def _type_llama_cpp(parameters: dict[str, Any], context: int) -> str:
    """Return flags; under YaRN the attention factor is a key of the GGUF, since ``--yarn-attn-factor`` is replaced."""
    scheme = parameters.get("rope_type")
    if scheme not in ("default", "linear", "yarn"):
        return ""
    flags = _FLAGS if scheme != "yarn" else _FLAGS | _YARN
    words = [f"-c {context}", f"--rope-scaling {'none' if scheme == 'default' else scheme}"]
    words += [f"{flag} {float(parameters[key]):.10g}" for key, flag in flags.items() if parameters.get(key) is not None]
    attention = parameters.get("attention_factor")
    if scheme == "yarn" and attention is not None:
        own = attention / schemes.sharpen_yarn(parameters["factor"])  # beside the factor of YaRN's formula
        words += [f"--override-kv ARCH.rope.scaling.attn_factor=float:{own:.8g}"] if abs(own - 1.0) > 1e-6 else []
    return " ".join(words)
