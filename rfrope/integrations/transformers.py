"""Frequencies of rfrope in the models of transformers: by the config alone, or in place of a model's own rotation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

from rfrope._core.arguments import positive
from rfrope.models import Layers, kernel_scheme, list_layers

try:
    import torch
    from transformers import PreTrainedModel, modeling_rope_utils

    from rfrope.integrations import polar, rotations, tuning
    from rfrope.integrations.reading import HeadFeatures, atlas, read_heads
    from rfrope.integrations.saving import KEPT, watch_saving
    from rfrope.layers.tuned import Tuning
except ImportError as error:
    raise ImportError(
        "rfrope.integrations.transformers needs PyTorch and transformers 5: pip install 'rfrope[transformers]'"
    ) from error

__all__ = [
    "HeadFeatures",
    "Replacement",
    "Tuning",
    "atlas",
    "read_heads",
    "register",
    "replace_rotary",
    "tune",
    "use_polar",
]

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see

_SAID = ("attention_factor", *kernel_scheme.KEYS)
_KEYS = {"rope_type", "type", *KEPT, *_SAID}


# -- a config that decides ---------------------------------------------------------------------------------------------


def register() -> None:
    """Make rope_type "rfrope" known to transformers, with its validation.

    A config then decides the frequencies by its ``rope_parameters``, through save and load, `generate` and training:

    - ``{"rope_type": "rfrope", "kernel": "matern(nu=1.5, scale=64.0)", "design": "optimised", "seed": 3}``: what
      `rfrope.design` makes of the kernel's text. Unless given, ``design`` is "auto", ``seed`` 0, and ``context`` the
      config's ``max_position_embeddings``.
    - ``{"rope_type": "rfrope", "frequencies": [...]}``: radians per position, one for each block.

    With ``"polar": True`` attention is polar, as `use_polar` makes it: frequencies are then one for each feature of a
    head, or lists of the shape of a Rope's, and ``learnable`` and ``score_scale`` are those of `use_polar`.

    Both may have an ``attention_factor``; ``rope_theta`` means nothing here. Models with kinds of layers have one such
    dict for each, as transformers has it. To be called once in a process, before such a config is loaded.

    Raises
    ------
    ImportError
        From the module, where PyTorch or transformers is missing; the message names the extra to install.

    See Also
    --------
    integrations.transformers.replace_rotary, exports.export

    Notes
    -----
    The rotation stays transformers' own, with frequencies in float32 and tables in the dtype of the model;
    `replace_rotary` makes it exact, and takes sets for each head and of several axes.

    Examples
    --------
    >>> register()
    >>> import transformers
    >>> rope_parameters = {"rope_type": "rfrope", "kernel": "gaussian(scale=32)", "seed": 3}
    >>> config = transformers.LlamaConfig(head_dim=64, rope_parameters=rope_parameters)
    """
    modeling_rope_utils.ROPE_INIT_FUNCTIONS[kernel_scheme.NAME] = _initialised
    modeling_rope_utils.RotaryEmbeddingConfigMixin._validate_rfrope_rope_parameters = _validated
    _watch_making()


def _initialised(
    config: Any = None, device: Any = None, seq_len: int | None = None, layer_type: str | None = None, **others: Any
) -> tuple[Any, float]:
    """Frequencies in float32 and the attention factor, as transformers asks for them."""
    parameters = config.rope_parameters
    if layer_type is not None and layer_type in parameters:
        parameters = parameters[layer_type]
        config = config.per_layer_config[layer_type] if getattr(config, "is_heterogeneous", False) else config
    rope = _rope_of(config, parameters)
    if rope.polar:  # for `use_polar`, which puts another module there
        return torch.full((rope.n_blocks // 2,), math.nan, device=device), rope.attention_factor
    return torch.tensor(rope.frequencies.tolist(), dtype=torch.float32, device=device), rope.attention_factor


def _rope_of(config: Any, parameters: Mapping[str, Any]) -> Any:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return kernel_scheme.make(parameters, head_dim, config.max_position_embeddings)


def _watch_making() -> None:
    """Let models whose config says so have polar attention from the start."""
    kept = PreTrainedModel.post_init
    if getattr(kept, "__module__", "") == __name__:
        return

    def post_init(self: Module) -> None:
        """Finish a model."""
        kept(self)
        parameters = getattr(self.config, "rope_parameters", None)
        parameters = parameters if isinstance(parameters, Mapping) else {}
        kinds = [one for one in (parameters, *parameters.values()) if isinstance(one, Mapping) and one.get("polar")]
        if not kinds or any(isinstance(one, rotations.Positions) for one in self.modules()):
            return
        if not any("Rotary" in type(one).__name__ for one in self.modules()):  # it may be a part without attention
            return
        if any({key: one.get(key) for key in _SAID} != {key: kinds[0].get(key) for key in _SAID} for one in kinds):
            raise ValueError("rope_parameters say another polar rotation for each kind of layer; expected one for all")
        asked = polar.PolarAttention.read_parameters(_rope_of(self.config, kinds[0]), kinds[0])
        _put_in(self, asked.positions, asked.put_in)

    PreTrainedModel.post_init = functools.update_wrapper(post_init, kept, ("__doc__", "__name__"))


def _validated(config: Any, rope_parameters: Mapping[str, Any], ignore_keys: set[str] | None = None) -> None:
    """Refuse a dict that says too little, too much, or something that cannot be read."""
    has = {key for key, value in rope_parameters.items() if value is not None}
    if unknown := has - _KEYS - set(ignore_keys or ()):
        raise ValueError(
            f"rope_parameters of rope_type 'rfrope' has {', '.join(sorted(unknown))}; expected no such key"
        )
    kernel_scheme.check(rope_parameters)


# -- another rotation in a model that is there -------------------------------------------------------------------------


class Replacement(ExitStack):
    """A rotation that was put in the place of a model's own; also a context manager, which takes it out at the end.

    Attributes
    ----------
    attentions : int
        How many attention modules turn by it.
    rotaries : int
        How many modules of the model gave tables of cos and sin, and now give positions.

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
        """Give the model its own rotation back. A second call does nothing."""
        self.close()


def replace_rotary(model: Module, rope: Any) -> Replacement:
    """Turn the queries and keys of a loaded model by a Rope, exactly, in place of its own rotation.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With a rotary module that makes tables from positions, as most have, or with tables in its attention. Parts
        that see or hear keep their own rotation, unless such a part is given alone.
    rope : Rope, array_like, `rfrope.layers.torch.RotaryEmbedding`, mapping of str to these, or `rfrope.models.Layers`
        For all layers, or by kind of layer, as in ``config.layer_types``; layers without RoPE stay without. ``Layers``
        with numbers must turn the layers that the model's config does. With sets
        for each head of the keys, or several axes of positions, too; with a module, what it learns is trained with the
        model.

    Returns
    -------
    Replacement
        With ``undo()``; also a context manager.

    Raises
    ------
    ValueError
        If the model has no such module, pairs features in another way than the Rope, turns another number of blocks,
        or has kinds of layers that a mapping lacks, or where ``Layers`` turn other layers. The model is then as it was.
    TypeError
        For what is no model.

    See Also
    --------
    integrations.transformers.register, integrations.transformers.tune, layers.torch.RotaryEmbedding

    Notes
    -----
    The rotary module gives positions in place of tables, and the attention modules, which pass them on to their
    function of q, k, cos and sin, get a function of q, k and positions instead: this model's alone, nothing of its
    class is changed but that `save_pretrained` looks for a replacement. A Rope of one axis in a model of M-RoPE is for
    text: position ids whose axes differ are refused. Caches hold turned keys, as ever, so a cache must not be used
    across a replacement.

    ``save_pretrained`` of the model, of a part of it or of what holds it writes the frequencies, as they are then, into
    the config, in the form that `register` reads. What a config cannot hold is not saved, with a warning: phases, sets
    for each head, several axes, and frequencies of classes that do not read them from a config.

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
    return _put_in(model, lambda one: rotations.positions_for(one, rope), rotations.redirect)


def _check_layers(model: Module, layers: Layers) -> None:
    """Refuse layers of which others turn, or by a Rope of another name, than those of a model."""
    given, config = layers.ropes_by_layer, getattr(model, "config", None)
    if given is None or config is None:  # without numbers they say nothing of single layers
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


def tune(
    model: Module,
    texts: Any,
    context: int,
    *,
    trained: int | None = None,
    starts: Any = ("yarn", "llama3", "ntk"),
    per: str = "model",
    part: str | None = None,
    tokenizer: Any = None,
    window: int | None = None,
    chunks: int = 2,
    batch: int = 1,
    whole_windows: float = 0.0,
    held_out: float = 0.25,
    reading: str = "auto",
    rng: int = 0,
    learnable: str | Sequence[str] = ("factors", "temperature"),
    steps: int = 200,
    rate: float = 0.01,
    penalty: float = 0.001,
    race: float = 0.25,
    check_every: int | None = None,
    patience: int = 5,
    activation_checkpointing: bool = False,
    checkpoint: Any = None,
    progress: Any = None,
) -> Tuning:
    """Learn factors of the frequencies, and a temperature, for a longer context of a model whose weights are frozen.

    Documents are divided, by `rng`, into those that are learned from, those that choose between starts and stop the
    learning, and those that are held out, which `rfrope.layers.tuning.Tuning` reports on.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model, as `replace_rotary` takes it. Afterwards it is as it was.
    texts : iterable
        Documents, at least 5, no two alike: token ids, strings, or files of text as ``pathlib.Path``.
    context : int
        Positions to reach.
    trained : int, optional
        Positions in training, as ``trained_context`` of `rfrope.analysis.plan`.
    starts : str, sequence of str or mapping
        Methods of `rfrope.analysis.plan`, or Ropes by names of their own; as of `layers.tuning.tune_modules`.
    per : {"model", "layer", "head"}
        What has factors of its own; a temperature is one for the model, or for each layer.
    part : str, optional
        Kind of layers that learn, where several see far. The others keep their own Rope.
    tokenizer : callable, optional
        The model's, for strings and files.
    window, chunks : int
        Tokens of a window, at least 3, the trained context and at most 1024 unless given; and parts of it that lie
        together, with random gaps between them, so that a short window reaches positions of the whole context.
    batch : int
        Windows of a step.
    whole_windows : float
        Part of the steps that reads a whole context in place of windows.
    held_out : float
        Part of the documents that is held out, at least 2; as many choose.
    reading : {"auto", "whole", "windows"}
        How documents that are held out are read: whole, in chunks with a cache, or by windows. Whole, unless one is
        shorter than the context.
    rng : int
        Seed of the division and the windows.
    learnable, steps, rate, penalty, race, check_every, patience, checkpoint, progress
        As of `rfrope.layers.tuning.tune_modules`.
    activation_checkpointing : bool
        Keep activations between layers alone, and compute the others anew for gradients.

    Returns
    -------
    layers.tuning.Tuning
        Its ``rope`` is a tuple with one for each layer where `per` is not "model"; `replace_rotary` takes both.

    Raises
    ------
    ValueError, TypeError
        For a model whose rotation cannot be replaced, texts that are too short or too few, a context that is not above
        the trained one, names that are no methods, a loss that is not finite from any start, options that are not as
        above, and a `checkpoint` of something else.

    See Also
    --------
    layers.tuning.Tuning, analysis.plan, integrations.transformers.replace_rotary

    Notes
    -----
    Windows are those of PoSE (Zhu et al. 2023): the first chunk begins at position 0, the others are moved on. Where a
    document has the whole context, tokens are those at these positions, else neighbours. The loss is that of the next
    token, in nats, and does not count across gaps: "within" the trained context, and "beyond" it. Layers with a window,
    where there are such beside those that learn, count tokens and not positions: they see across gaps.

    Examples
    --------
    >>> import torch, transformers
    >>> sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}
    >>> config = transformers.LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=16)
    >>> model, texts = transformers.LlamaForCausalLM(config), torch.arange(246).reshape(6, 41) % 16
    >>> tuning = tune(model, texts, 32, starts="ntk", steps=2)
    >>> tuning.rope.context, [*tuning.losses]
    (32, ['as it is', 'ntk', 'learned'])
    """
    course: dict[str, Any] = {"steps": steps, "rate": rate, "penalty": penalty, "race": race}
    course |= {"check_every": check_every, "patience": patience}
    options: dict[str, Any] = {"window": window, "chunks": chunks, "batch": batch, "whole_windows": whole_windows}
    options |= {"held_out": held_out, "reading": reading, "rng": rng, "learnable": learnable}
    options |= {"activation_checkpointing": activation_checkpointing, "checkpoint": checkpoint, "progress": progress}
    return tuning.tune(
        model,
        texts,
        context,
        replace=replace_rotary,
        trained=trained,
        starts=starts,
        per=per,
        part=part,
        tokenizer=tokenizer,
        **options,
        **course,
    )


def use_polar(
    model: Module, rope: Any, *, learnable: bool | str | Sequence[str] = "phases", score_scale: float | None = None
) -> Replacement:
    """Give a model polar attention, for training: magnitudes by softplus, directions by position alone.

    The weights of a model that was trained with RoPE are not made for that: it is for a model that is trained from the
    start, or trained further at length.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Llama, or one whose attention is written as Llama's between projections and attention function, as that of
        Mistral, Qwen 2 and 3, Gemma 1 to 3, OLMo, Cohere, GLM 4, Granite and gpt-oss.
    rope : Rope, array_like or int
        A polar Rope for all layers, as of `rfrope.layers.torch.PolarEmbedding`: a frequency for each feature of a head,
        one set or one for each head of the keys.
    learnable : bool, str or sequence of str
        As of `PolarEmbedding`: the bias of keys unless said otherwise, each layer and each head its own.
    score_scale : float, optional
        Positive; what scores are multiplied by. Unless given, logits spread at the start as those of the model with
        RoPE would: `PolarEmbedding.score_scale`, for a model that divides by ``sqrt(head_dim)``.

    Returns
    -------
    Replacement
        With ``undo()``; also a context manager.

    Raises
    ------
    ValueError
        For a Rope that is not polar, or has other heads, another width or several axes; for a model whose attention is
        written otherwise; and for flash attention where ``2 head_dim`` is above 256. The model is then as it was.
    TypeError
        For what is no model.

    See Also
    --------
    rfrope.layers.torch.PolarEmbedding : what each attention module gets, under the name ``polar``.

    Notes
    -----
    Queries and keys become twice as wide before the cache holds the keys, values stay as they are.
    ``model.state_dict()`` has what was learned, under ``polar``. ``save_pretrained`` writes it with the weights, and
    the Rope into the config, in the form that `register` reads: ``from_pretrained``, after ``register()``, gives the
    model back, and without it transformers says that it does not know the type.

    Examples
    --------
    >>> import rfrope, torch, transformers
    >>> sizes = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 2}
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    >>> rope = rfrope.design("gaussian", head_dim=16, context=64, heads=2, ladder=(2.0, 16.0), polar=True, rng=0)
    >>> polar = use_polar(model, rope)
    >>> model.model.layers[0].self_attn.polar.phases.shape
    torch.Size([2, 16])
    """
    scale = None if score_scale is None else positive("score_scale", score_scale)
    asked = polar.PolarAttention(rope, learnable, scale)
    return _put_in(model, asked.positions, asked.put_in)


def _put_in(
    model: Module, replace: Callable[[rotations.Rotary], rotations.Positions], redirect: Callable[..., bool]
) -> Replacement:
    """Let rotary modules give positions, and attention modules turn by them."""
    done = Replacement()
    watch_saving(register)
    rotaries = rotations.rotaries(model)
    try:
        made = {id(one): replace(one) for one in rotaries if one.is_replaced}
        for rotary in rotaries:
            if rotary.is_replaced:
                rotations.swap(rotary.parent._modules, rotary.name, made[id(rotary)], done)
                done.rotaries += rotary.gives_tables
        for path, attention in [*model.named_modules()]:
            rotary = rotations.nearest(path, rotaries)
            if rotary.is_replaced and not (rotary.is_text and rotations.PERCEPTION.search(path)):
                done.attentions += redirect(attention, made[id(rotary)], done)
        if not done.attentions:
            raise ValueError(
                f"{type(model).__name__} has no attention that turns q and k by a table of cos and sin; expected a "
                "model that has"
            )
    except BaseException:
        done.undo()
        raise
    return done
