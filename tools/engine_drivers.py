"""Engines as `observe_engines` runs them: each builds a tiny model and gives what turns its queries and keys.

``see(config, length)`` returns the rotation of each layer by its number, for a text of some length, or raises the
engine's own error. A model is built whole, with weights that are empty or on the meta device, and is never run.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import json
import logging
import os
import pathlib
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_PERCEIVES = re.compile(r"vis|image|audio|tower|encoder|mtp|indexer")


@dataclass(frozen=True)
class Turn:
    """The rotation of one layer: frequencies (D,) in radians per position, factor, pairing and length of tables."""

    frequencies: np.ndarray
    factor: float
    pairing: str | None
    positions: int | None = None

    def is_like(self, frequencies: np.ndarray, factor: float) -> bool:
        """Return whether it is a rotation in float64, up to the rounding of tables in float32."""
        if frequencies.shape != self.frequencies.shape or abs(factor - self.factor) > 1e-4 * factor:
            return False
        return bool(np.all(np.abs(self.frequencies - frequencies) <= 2e-3 * frequencies + 2e-7))


Seen = dict[int, Turn]


def read_table(cos: np.ndarray, sin: np.ndarray) -> tuple[np.ndarray, float]:
    """Return frequencies and the factor of tables (positions, D), each row doubling the phase of one before it."""
    factor = float(np.hypot(cos[0, 0], sin[0, 0]))
    angle, at = np.arctan2(sin[1], cos[1]), 1
    angle = angle.astype(np.float64)
    while 2 * at < len(cos):
        at *= 2
        near = np.arctan2(sin[at], cos[at])
        turns = np.round((at * angle - near) / (2 * np.pi))
        angle = (near + 2 * np.pi * turns) / at
    return np.abs(angle), factor


def find_layers(modules: Iterator[tuple[str, Any]], is_rotary: Callable[[Any], bool]) -> dict[int, Any]:
    """Return the rotary module of each layer of the text, by its number; -1 for one that all layers share."""
    found: dict[int, Any] = {}
    for name, module in modules:
        if not is_rotary(module) or _PERCEIVES.search(name):
            continue
        at = _LAYER.search(name)
        found.setdefault(int(at[1]) if at else -1 - ("local" in name or "sliding" in name), module)
    return found


def load_torchvision() -> None:
    """Import torchvision without its compiled part, which wants another torch."""
    torch = importlib.import_module("torch")
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")
    sys.modules["torchvision"].kept_library = library


def write_config(config: dict[str, Any], count: int = 0) -> str:
    """Write a config into the one folder that engines read it from, and return that."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"observed-{os.getpid()}" / str(count)
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return str(folder)


class Packaged:
    """A driver of an engine that is a package of PyPI."""

    package: str

    @classmethod
    def find_version(cls) -> str:
        """Return the version that is installed; PackageNotFoundError, an ImportError, if none is."""
        return importlib.metadata.version(cls.package).partition("+")[0]


# -- transformers 4 ----------------------------------------------------------------------------------------------------


class Transformers4(Packaged):
    """transformers 4: its rotary module, after a call with the last position, and its own function of cos and sin."""

    package, name = "transformers", "transformers 4"

    def __init__(self) -> None:
        self.torch, self.auto = importlib.import_module("torch"), importlib.import_module("transformers")
        self.auto.logging.set_verbosity(50)
        self.modeling = importlib.import_module("transformers.modeling_utils")

    def see(self, config: dict[str, Any], length: int) -> Seen:
        held = self.auto.AutoConfig.for_model(**copy.deepcopy(config))
        named = getattr(self.auto, config["architectures"][0])
        with self.modeling.no_init_weights(), self.torch.no_grad():
            model = named(held)
        found = find_layers(
            model.named_modules(), lambda one: isinstance(getattr(one, "inv_freq", None), self.torch.Tensor)
        )
        text = held.get_text_config() if "text_config" in config else held
        kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
        seen = {}
        for i, kind in enumerate(kinds):
            one = found.get(i, found.get(-2 if kind == "sliding_attention" and -2 in found else -1))
            if one is not None:
                seen[i] = read_frequencies(one, length)
        if not seen:
            raise LookupError("no rotary module with frequencies")
        return seen


def read_frequencies(rotary: Any, length: int, layer: str = "full_attention") -> Turn:
    """Return the rotation of a rotary class of transformers after a call with the last position."""
    torch, named = importlib.import_module("torch"), name_kind(rotary) and {"layer_type": layer}
    ids = torch.tensor([[0, length - 1]])
    try:
        rotary(torch.zeros(1, 2, 8), ids, **named)
    except IndexError:  # one row for each axis
        rotary(torch.zeros(1, 2, 8), ids.expand(3, 1, 2), **named)
    kind = f"{layer}_" if named else ""
    frequencies = getattr(rotary, f"{kind}inv_freq").double().numpy().ravel()
    factor = float(getattr(rotary, f"{kind}attention_scaling", 1.0))
    return Turn(frequencies, factor, find_pairing(rotary, frequencies.size))


def name_kind(rotary: Any) -> dict[str, str]:
    """Return the kind of layers that a call must name."""
    return {"layer_type": "full_attention"} if "layer_type" in inspect.signature(rotary.forward).parameters else {}


def find_pairing(rotary: Any, blocks: int) -> str | None:
    """Return which features the function of cos and sin mixes: those with an output in common with the first."""
    module, torch = sys.modules[type(rotary).__module__], importlib.import_module("torch")
    if any("multimodal" in name for name in vars(module)):
        return "half"  # whose function wants sections
    eye, ids = torch.eye(2 * blocks)[None, None], torch.ones(1, 2 * blocks, dtype=torch.long)
    tables = rotary(torch.zeros(1, 2 * blocks, 8), ids, **name_kind(rotary))
    apply = getattr(module, "apply_rotary_pos_emb_interleave", None) if "deepseek" in module.__name__ else None
    apply = apply or getattr(module, "apply_rotary_pos_emb", None) or module.apply_rotary_emb
    given = tables if isinstance(tables, tuple) else (tables,)
    try:
        got = apply(eye, eye, *given)[0] if "k" in "".join(inspect.signature(apply).parameters) else apply(eye, *given)
    except (TypeError, RuntimeError, ValueError):
        got = apply(eye.transpose(1, 2), eye.transpose(1, 2), *given)[0].transpose(1, 2)
    mixed = (got[0, 0] != 0).double()
    (partners,) = np.nonzero((mixed @ mixed[0]).numpy())
    return {1: "interleaved", blocks: "half"}.get(int(partners[-1]))


# -- vLLM and SGLang ---------------------------------------------------------------------------------------------------


def read_cache(rotary: Any, length: int) -> Turn:
    """Return the rotation of a class of vLLM or SGLang by its table of cos, then sin, in each row."""
    original = getattr(rotary, "original_max_position_embeddings", 0) or 0
    table = getattr(rotary, "cos_sin_cache", None)
    if hasattr(rotary, "use_long_rope"):
        both = rotary.long_short_cos_sin_cache
        table = both[original:] if rotary.use_long_rope else both[:original]
    elif hasattr(rotary, "long_cos_sin_cache"):
        table = rotary.long_cos_sin_cache if length > original else rotary.short_cos_sin_cache
    cos, sin = np.split(table.float().numpy(), 2, axis=-1)
    pairing = "half" if getattr(rotary, "is_neox_style", True) else "interleaved"
    return Turn(*read_table(cos, sin), pairing, len(table))


def is_cached(module: Any) -> bool:
    """Return whether a module has such a table."""
    return any(hasattr(module, name) for name in ("cos_sin_cache", "long_short_cos_sin_cache", "long_cos_sin_cache"))


@contextlib.contextmanager
def on_host(torch: Any, module: Any) -> Iterator[None]:
    """Build what ``get_rope`` makes on the host, inside a model on the meta device; every time anew."""
    module._ROPE_DICT.clear()
    real, bound = module.get_rope, []

    def recorded(*args: Any, **more: Any) -> Any:
        with torch.device("cpu"):
            return real(*args, **more)

    for other in [*sys.modules.values()]:
        for key, value in [*getattr(other, "__dict__", {}).items()]:
            if value is real:
                bound.append((other, key))
                setattr(other, key, recorded)
    try:
        yield
    finally:
        for other, key in bound:
            setattr(other, key, real)


def see_cached(model: Any, length: int) -> Seen:
    """Return what the layers of a model of vLLM or SGLang turn by."""
    found = find_layers(model.named_modules(remove_duplicate=False), is_cached)
    if not found:
        raise LookupError("no rotary module with tables")
    seen = {i: read_cache(one, length) for i, one in found.items()}
    if hasattr(model, "permute_qk_weight_for_rotary"):  # its loader reorders the rows of queries and keys
        seen = {i: Turn(one.frequencies, one.factor, "interleaved", one.positions) for i, one in seen.items()}
    return seen


class VLLM(Packaged):
    """vLLM: the model on the meta device, its rotary modules on the host."""

    package, name = "vllm", "vLLM"

    def __init__(self) -> None:
        os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
        self.torch = importlib.import_module("torch")
        load_torchvision()
        platforms, host = (importlib.import_module(f"vllm.platforms{one}") for one in ("", ".cpu"))
        platforms._current_platform = host.CpuPlatform()
        self.registry = importlib.import_module("vllm.model_executor.models.registry")
        self.registry._run_in_subprocess = lambda function: function()
        self.config = importlib.import_module("vllm.config")
        self.rotary = importlib.import_module("vllm.model_executor.layers.rotary_embedding")
        self.parallel = importlib.import_module("vllm.distributed")
        importlib.import_module("vllm.transformers_utils.repo_utils").time = types.SimpleNamespace(sleep=lambda _: None)
        self.is_ready = False

    def see(self, config: dict[str, Any], length: int) -> Seen:
        folder, one = write_config(config), self.config
        made = one.ModelConfig(
            model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=length
        )
        whole = one.VllmConfig(model_config=made, device_config=one.DeviceConfig(device="cpu"))
        with one.set_current_vllm_config(whole):
            if not self.is_ready:
                self.parallel.init_distributed_environment(1, 0, f"file://{folder}/group", 0, "gloo")
                self.parallel.initialize_model_parallel(1, 1)
                state = importlib.import_module("vllm.distributed.parallel_state")
                state._EP = state._EP or state.get_tp_group()  # the first config may have no experts, later ones do
                self.is_ready = True
            kind, _ = self.registry.ModelRegistry.resolve_model_cls(config["architectures"], made)
            with on_host(self.torch, self.rotary), self.torch.device("meta"):
                model = kind(vllm_config=whole, prefix="")
        inner = getattr(model, "model", None)
        if type(model).__name__.startswith("Transformers"):  # it runs the class of transformers
            found = find_layers(
                inner.named_modules(), lambda one: hasattr(one, "rope_type") or hasattr(one, "inv_freq")
            )
            (rotary,) = (type(one)(one.config) for one in found.values() if hasattr(one, "config"))
            if name_kind(rotary):
                raise LookupError("no rotary module for each kind of layers was seen")
            return {i: read_frequencies(rotary, length) for i in range(rotary.config.num_hidden_layers)}
        return see_cached(model, length)


class SGLang(Packaged):
    """SGLang: the model on the meta device, its rotary modules on the host."""

    package, name = "sglang", "SGLang"

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        load_torchvision()
        sys.meta_path.append(_Absent("torchaudio", "decord", "decord2", "uvicorn", "vllm"))
        logging.disable(logging.WARNING)
        folder = write_config({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1})
        arguments = importlib.import_module("sglang.srt.server_args")
        arguments.set_global_server_args_for_scheduler(
            arguments.ServerArgs(model_path=folder, device="cpu", skip_tokenizer_init=True)
        )
        groups = importlib.import_module("sglang.srt.distributed.parallel_state")
        start = f"file://{folder}/group"
        groups.init_distributed_environment(
            world_size=1, rank=0, distributed_init_method=start, local_rank=0, backend="gloo"
        )
        groups.initialize_model_parallel()
        context = importlib.import_module("sglang.srt.runtime_context")
        names = [name for name in context._parallel_fields() if name.endswith(("_rank", "_size"))]
        values = {name: int(name.endswith("_size")) for name in names}
        context.get_parallel()._overrides.update(values)
        self.rotary = importlib.import_module("sglang.srt.layers.rotary_embedding.factory")
        # on the host, latent attention as with a device: a host's own way makes DeepSeek's YaRN alone
        self.rotary.get_rope_cpu = lambda *given: self.rotary.get_rope(*given[:-1])
        importlib.import_module("sglang.srt.layers.rotary_embedding.rope_variant").get_device = lambda: "cpu"
        self.models = importlib.import_module("sglang.srt.models.registry").ModelRegistry
        self.count = 0
        self.read = importlib.import_module("sglang.srt.utils.hf_transformers_utils").get_config

    def see(self, config: dict[str, Any], length: int) -> Seen:
        self.count += 1  # it remembers what it read from a folder
        held = self.read(write_config(config, self.count), trust_remote_code=False)
        kind, _ = self.models.resolve_model_cls(config["architectures"])
        if kind.__name__.startswith("Transformers"):
            raise LookupError("it has no class of its own")
        with on_host(self.torch, self.rotary), self.torch.device("meta"):
            model = kind(held)
        return see_cached(model, length)


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that an engine's modules import and a rotation does not need."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        is_meant = name.partition(".")[0] in self.names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_meant else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Module(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


# -- exllamav3 ---------------------------------------------------------------------------------------------------------


class ExLlamaV3(Packaged):
    """exllamav3: its rotary class by the settings of each layer, without the compiled part, which wants CUDA."""

    package = name = "exllamav3"

    def __init__(self) -> None:
        sys.meta_path.append(_Absent("formatron", "kbnf", "marisa_trie", "pyarrow"))
        compiled: Any = types.ModuleType("exllamav3.ext")
        compiled.exllamav3_ext = _Module("exllamav3_ext")
        sys.modules["exllamav3.ext"] = compiled
        self.engine, self.rotary = importlib.import_module("exllamav3"), importlib.import_module("exllamav3.util.rope")

    def see(self, config: dict[str, Any], length: int) -> Seen:
        held, seen = self.engine.Config.from_directory(write_config(config)), Seen()
        held.override_dynamic_seq_len(length)
        for part in self.engine.Model.from_config(held):
            settings, at = getattr(part, "rope_settings", None), _LAYER.search(f"{part.key}.")
            if settings is not None and at and not _PERCEIVES.search(part.key):
                made, pairing = self.rotary.RoPE("cpu", settings), {1: "interleaved", 2: "half"}[settings.rope_style]
                seen[int(at[1])] = Turn(made.inv_freq.double().numpy(), float(made.attn_factor), pairing)
        if not seen:
            raise LookupError("no rotary settings")
        return seen


# -- MLX-LM and mlx-vlm ------------------------------------------------------------------------------------------------


class MLXLM(Packaged):
    """MLX-LM: what each rotary module hands to ``mx.fast.rope`` for the last position."""

    package, name = "mlx-lm", "MLX-LM"

    def __init__(self) -> None:
        self.mx, self.nn = importlib.import_module("mlx.core"), importlib.import_module("mlx.nn")
        self.utils = importlib.import_module("mlx_lm.utils")

    def make(self, config: dict[str, Any]) -> Any:
        """Build the model."""
        kind, arguments = self.utils._get_classes(config=config)
        return kind(arguments.from_dict(copy.deepcopy(config)))

    def see(self, config: dict[str, Any], length: int) -> Seen:
        model, seen = self.make(copy.deepcopy(config)), Seen()
        for name, module in model.named_modules():
            at = _LAYER.search(name)
            if not at or _PERCEIVES.search(name) or not name.endswith(("rope", "rotary_emb", "pos_emb")):
                continue
            turn = self.read(module, length)
            if turn is not None and getattr(self.parent(model, name), "use_rope", True):
                seen.setdefault(int(at[1]), turn)
        if not seen:
            raise LookupError("no rotary module")
        return seen

    def parent(self, model: Any, name: str) -> Any:
        for part in name.split(".")[:-1]:
            model = model[int(part)] if isinstance(model, list) else model[part]
        return model

    def read(self, rotary: Any, length: int) -> Turn | None:
        mx, said = self.mx, {}
        real = mx.fast.rope

        def recorded(
            x: Any, dims: int, *, traditional: bool, base: Any, scale: float, offset: Any, freqs: Any = None
        ) -> Any:
            said.update(x=x, dims=dims, traditional=traditional, base=base, scale=scale, freqs=freqs)
            return real(x, dims, traditional=traditional, base=base, scale=scale, offset=offset, freqs=freqs)

        mx.fast.rope = recorded
        try:
            held = getattr(rotary, "_freqs", None)  # DeepSeek V2's class turns all that it is given
            rotary(mx.ones((1, 1, 1, 512 if held is None else 2 * held.size)), offset=length - 1)
        finally:
            mx.fast.rope = real
        if not said:
            return None
        dims = said["dims"]
        ladder = float(said["base"] or 1.0) ** (-np.arange(0, dims, 2) / dims)
        if said["freqs"] is not None:
            ladder = 1.0 / np.array(said["freqs"]).astype(np.float64)
        pairing = "interleaved" if said["traditional"] else "half"
        return Turn(ladder * said["scale"], float(said["x"].reshape(-1)[0].item()), pairing)


class MLXVLM(MLXLM):
    """mlx-vlm, the same; its rotary modules of several axes hold frequencies."""

    package = name = "mlx-vlm"

    def __init__(self) -> None:
        super().__init__()
        self.utils = importlib.import_module("mlx_vlm.utils")

    def make(self, config: dict[str, Any]) -> Any:
        """Build the model, as its loader does."""
        kind, _ = self.utils.get_model_and_args(config)
        config = {"text_config": config.pop("llm_config", {}), "vision_config": {}, "audio_config": {}} | config
        held = kind.ModelConfig.from_dict(config)
        return kind.Model(self.utils.update_module_configs(held, kind, config, ["text", "vision", "audio"]))

    def read(self, rotary: Any, length: int) -> Turn | None:
        if not hasattr(rotary, "inv_freq"):
            return super().read(rotary, length)
        pairing = {"half_split": "half", "even_odd": "interleaved"}[getattr(rotary, "pairing", "half_split")]
        factor = float(getattr(rotary, "attention_scaling", 1.0))
        return Turn(np.array(rotary.inv_freq).astype(np.float64), factor, pairing)
