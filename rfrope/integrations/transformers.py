"""rfrope's frequencies in transformers models: through the config, or by replacing a model's own rotation."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, TypeAlias

from rfrope._core import array
from rfrope.data.model_types import known
from rfrope.models import Layers, kernel_scheme, list_layers

try:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, modeling_rope_utils

    from rfrope.integrations import rotations
    from rfrope.integrations.reading import HeadFeatures, atlas, read_heads
    from rfrope.integrations.text_tuning import tune
    from rfrope.integrations.tuned import Tuning
except ImportError as error:
    raise ImportError(
        "rfrope.integrations.transformers needs PyTorch and transformers 5: pip install torch 'transformers>=5'"
    ) from error

__all__ = ["HeadFeatures", "Replacement", "Tuning", "atlas", "read_heads", "register", "replace_rotary", "tune"]
Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see
KEPT = ("rope_theta", "partial_rotary_factor")  # of a config's own parameters
_KEYS = {"rope_type", "type", *KEPT, "attention_factor", *kernel_scheme.KEYS}


# -- a config that decides ---------------------------------------------------------------------------------------------


def register() -> None:
    """Register rope_type "rfrope" with transformers, including its validation.

    The ``rope_parameters`` of a config then determine the frequencies, through save and load, `generate` and training:

    - ``{"rope_type": "rfrope", "kernel": "matern(nu=1.5, scale=64.0)", "design": "optimised", "seed": 3}``: the result
      of `rfrope.design` for the kernel. Default: ``design`` "auto", ``seed`` 0, ``context`` the config's
      ``max_position_embeddings``.
    - ``{"rope_type": "rfrope", "frequencies": [...]}``: radians per position, one per block.

    Both accept an ``attention_factor``; ``rope_theta`` has no effect. Models with several kinds of layers have one such
    dict for each kind. Call this once per process, before loading such a config.

    Raises
    ------
    ImportError
        On import of the module if PyTorch or transformers is missing; the message names the extra to install.

    See Also
    --------
    integrations.transformers.replace_rotary, engines.export

    Notes
    -----
    The rotation is still transformers' own, with float32 frequencies and tables in the dtype of the model.
    `replace_rotary` makes it exact, and supports sets per head and several axes.

    Examples
    --------
    >>> register()
    >>> import transformers
    >>> rope_parameters = {"rope_type": "rfrope", "kernel": "gaussian(scale=32)", "seed": 3}
    >>> config = transformers.LlamaConfig(head_dim=64, rope_parameters=rope_parameters)
    """
    modeling_rope_utils.ROPE_INIT_FUNCTIONS[kernel_scheme.NAME] = _initialised
    modeling_rope_utils.RotaryEmbeddingConfigMixin._validate_rfrope_rope_parameters = _validated


def _initialised(
    config: Any = None, device: Any = None, seq_len: int | None = None, layer_type: str | None = None, **others: Any
) -> tuple[Any, float]:
    """Frequencies in float32 and the attention factor, as transformers asks for them."""
    parameters = config.rope_parameters
    if layer_type is not None and layer_type in parameters:
        parameters = parameters[layer_type]
        config = config.per_layer_config[layer_type] if getattr(config, "is_heterogeneous", False) else config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = kernel_scheme.make(parameters, head_dim, config.max_position_embeddings)
    return torch.tensor(rope.frequencies.tolist(), dtype=torch.float32, device=device), rope.attention_factor


def _validated(config: Any, rope_parameters: Mapping[str, Any], ignore_keys: set[str] | None = None) -> None:
    """Refuse a dict with missing, unknown or unreadable entries."""
    has = {key for key, value in rope_parameters.items() if value is not None}
    if unknown := has - _KEYS - set(ignore_keys or ()):
        raise ValueError(f"rope_parameters of type 'rfrope' has {', '.join(sorted(unknown))}; expected no such key")
    kernel_scheme.check(rope_parameters)


# -- another rotation in a model that is there -------------------------------------------------------------------------


class Replacement(ExitStack):
    """A replaced rotation of a model; as a context manager, it restores the model's own at the end.

    Attributes
    ----------
    attentions : int
        Number of attention modules that use it.
    rotaries : int
        Number of modules that made cos/sin tables and now return positions.

    See Also
    --------
    integrations.transformers.replace_rotary

    Examples
    --------
    >>> import rfrope, transformers
    >>> from rfrope.integrations.transformers import replace_rotary
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=8, hidden_size=32, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    ... )
    >>> replacement = replace_rotary(transformers.LlamaForCausalLM(config), rfrope.geometric(8))
    >>> replacement.attentions, replacement.rotaries
    (2, 1)
    >>> replacement.undo()
    """

    attentions = rotaries = 0

    def undo(self) -> None:
        """Restore the model's own rotation. A second call does nothing."""
        self.close()


def replace_rotary(model: Module, rope: Any) -> Replacement:
    """Replace the rotation of a loaded model by a Rope, applied exactly.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With a rotary module that makes tables from positions, as most have. Vision and audio parts keep their own
        rotation, unless such a part is passed alone.
    rope : Rope, array_like, `rfrope.layers.torch.RotaryEmbedding`, mapping of str to these, or `rfrope.models.Layers`
        For all layers, or by kind of layer, as in ``config.layer_types``; layers without RoPE stay without. May have
        sets for each key head, or several axes. A module is trained with the model. ``Layers`` with numbers must rotate
        the same layers as the config.

    Returns
    -------
    Replacement
        Call its ``undo()``, or use it as a context manager, to restore the model's own rotation.

    Raises
    ------
    ValueError
        If the model has no such module, has another pairing or number of blocks than the Rope, or has kinds of layers
        that a mapping lacks, or if ``Layers`` rotate other layers. The model is then unchanged.
    TypeError
        If `model` is not a model.

    See Also
    --------
    integrations.transformers.register, integrations.transformers.tune, layers.torch.RotaryEmbedding

    Notes
    -----
    The rotary module returns positions instead of tables, and attention modules, which pass them to their function of
    q, k, cos and sin, get a function of q, k and positions. Only this model changes; of its class, only
    `save_pretrained` does, which looks for a replacement. A Rope of one axis in an M-RoPE model is for text: position
    ids whose axes differ are refused. Caches hold rotated keys, so do not use a cache across a replacement.

    ``save_pretrained`` of the model, a part of it, or what contains it writes the current frequencies into the config,
    in the form that `register` reads. A config cannot hold phases, sets per head, several
    axes, or frequencies of classes that do not read them: these are left out with a warning.

    Examples
    --------
    >>> import rfrope, torch, transformers
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=8, hidden_size=32, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    ... )
    >>> model = transformers.LlamaForCausalLM(config)
    >>> with replace_rotary(model, rfrope.geometric(8)) as replacement:
    ...     logits = model(torch.arange(5)[None]).logits
    >>> replacement.attentions
    2
    """
    if isinstance(rope, Layers):
        _check_layers(model, rope)
        rope = rope.ropes.get("", rope.ropes)
    done = Replacement()
    _watch_saving()
    rotaries, made = rotations.rotaries(model), {}
    has_text = any(one.is_text for one in rotaries)
    try:
        for rotary in rotaries:
            if rotary.is_text or not has_text:
                made[id(rotary)] = rotations.Positions(rotary, rotations.turning_modules(rotary.module, rope))
                rotations.swap(rotary.parent._modules, rotary.name, made[id(rotary)], done)
                done.rotaries += 1
        for path, attention in [*model.named_modules()]:
            rotary = rotations.nearest(path, rotaries)
            if id(rotary) in made and not (rotary.is_text and rotations.PERCEPTION.search(path)):
                done.attentions += rotations.redirect(attention, made[id(rotary)], done)
        if not done.attentions:
            raise ValueError(
                f"{type(model).__name__} has no attention that turns q and k by a table of cos and sin; expected a "
                "model that has"
            )
    except BaseException:
        done.undo()
        raise
    return done


def _check_layers(model: Module, layers: Layers) -> None:
    """Refuse layers that do not match the model's: other layers rotate, or by a Rope of another name."""
    given, config = layers.ropes_by_layer, getattr(model, "config", None)
    if given is None or config is None:  # without numbers they do not describe single layers
        return
    own = list_layers(config).ropes_by_layer
    if own is None:
        raise ValueError(
            f"rope numbers {len(given)} layers, and the config of this {type(model).__name__} does not number its own; "
            "expected rope.ropes, a mapping by kind of layer"
        )
    if len(given) != len(own):
        raise ValueError(f"rope is for {len(given)} layers, and this {type(model).__name__} has {len(own)}")
    one_for_all = [*layers.ropes] == [""]
    for i, (one, name) in enumerate(zip(given, own, strict=True)):
        if (one is None) != (name is None) or not (one_for_all or one == name):
            said = ["no RoPE" if each is None else f"the RoPE {each!r}" if each else "RoPE" for each in (one, name)]
            raise ValueError(
                f"rope has {said[0]} in layer {i}, and the config of this {type(model).__name__} {said[1]}; expected "
                "list_layers of the model's own config, or rope.ropes, a mapping by kind of layer"
            )


def _watch_saving() -> None:
    """Make models look for replaced rotations when saved, also those of a part replaced on its own."""
    kept = PreTrainedModel.save_pretrained
    if getattr(kept, "__module__", "") == __name__:
        return

    def save_pretrained(self: Module, *arguments: Any, **options: Any) -> Any:
        """Save a model with a config that describes its current rotation."""
        replaced = [one for one in self.modules() if isinstance(one, rotations.Positions)]
        with ExitStack() as undo:
            for lost in dict.fromkeys(filter(None, [_written(self, one, undo) for one in replaced])):
                warnings.warn(
                    f"{type(self).__name__} is saved without the rotation that replace_rotary put in: {lost}; expected "
                    "replace_rotary again after from_pretrained, and the state_dict of what was learned",
                    stacklevel=2,
                )
            return kept(self, *arguments, **options)

    PreTrainedModel.save_pretrained = functools.update_wrapper(save_pretrained, kept, ("__doc__", "__name__"))


def _written(model: Module, positions: rotations.Positions, undo: ExitStack) -> str:
    """Put frequencies into the config of the module that they replace; return why that is impossible, or ""."""
    register()
    module = positions.__dict__["rotary"].module
    kind, config = type(module), getattr(module, "config", None)
    before = getattr(config, "rope_parameters", None)
    if config is None or not isinstance(before, Mapping) or known(getattr(config, "model_type", None)).get("negated"):
        return f"{kind.__name__} reads no frequencies from a config"
    if not any(each is config for each in _configs(model.config)):
        return f"{kind.__name__} has a config of its own, which is not saved"
    if any(one.phases is not None or one.start.vectors.ndim > 1 for one in positions.turning.values()):
        return "a config holds one set of frequencies for all heads, and no phases"
    told = {}
    for name, one in positions.turning.items():
        own, rope = before if name == "all" else before[name], one.rope
        numbers = {"frequencies": array.to_host(rope.frequencies).tolist(), "attention_factor": rope.attention_factor}
        told[name] = {key: own[key] for key in KEPT if key in own} | {"rope_type": kernel_scheme.NAME} | numbers
    with ExitStack() as changed, suppress(Exception):  # a model class may raise anything
        rotations.swap(config.__dict__, "rope_parameters", told.get("all", {**before, **told}), changed)
        config.validate_rope()  # transformers 5.0 has no validate()
        made = kind(config)
        if all(_turns_by(made, "" if name == "all" else f"{name}_", parameters) for name, parameters in told.items()):
            undo.push(changed.pop_all())
            return ""
    return f"{kind.__name__} does not rotate by the frequencies of its config"


def _configs(config: Any) -> Iterator[Any]:
    """A config and those inside it."""
    yield config
    for one in vars(config).values():
        if isinstance(one, PretrainedConfig):
            yield from _configs(one)


def _turns_by(made: Module, prefix: str, parameters: Mapping[str, Any]) -> bool:
    """Return True if a module of transformers turns by the frequencies and the factor of some parameters."""
    frequencies, own = torch.tensor(parameters["frequencies"], dtype=torch.float32), getattr(made, f"{prefix}inv_freq")
    is_scaled = getattr(made, f"{prefix}attention_scaling") == parameters["attention_factor"]
    return is_scaled and torch.equal(own.cpu(), frequencies)
