"""Account for every key of a config that looks like RoPE: it agrees with what was read, or it is named."""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rfrope._core.arguments import printable, show
from rfrope.rotation.rope import Rope
from rfrope.scaling import registry

_OPAQUE = ("quantization_config", "compression_config", "generation_config", "id2label", "label2id", "auto_map")
_WORD = r"(?:[a-z0-9]*(?<!eu)(?<!t)(?<!g)(?<!p)rope|rope[a-z0-9]*|rotary|rot|yarn|d?ntk|nope|xpos|alibi|thetas?)"
_LIKE = re.compile(
    rf"(?:.*_)?(?:{_WORD}|is_neox(?:_style)?|use_mla|inv_freq|low_freq_factor|(?:pos|position)_.*_type)(?:_.*)?"
)
# these mean RoPE beside other keys of it, and may mean something else where there are none
_WEAK = {*registry.KEYS, "attn_factor", "extrapolation_factor", "scaling_factor", "original_seq_len", "freq_base"}
_WEAK |= {"original_context_length", "initial_context_length", "llama_4_scaling"}
_SCHEMES = {alias for one in registry.records() for alias in (one.name, *one.aliases)} - {"default"}
_PAIRS = r"(?:.*_)?ro(?:pe|tary)_(?:.*_)?(?:interleaved?|traditional)|(?:.*_)?(?:is|use)_neox(?:_.*)?"


class Record(Mapping[str, Any]):
    """One level of a config, which remembers the keys that were read."""

    def __init__(self, held: Mapping[str, Any]) -> None:
        self.held, self.read = held, set[str]()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.held[key]

    def __contains__(self, key: object) -> bool:
        return key in self.held

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def items(self) -> ItemsView[str, Any]:
        """Return all keys and values, which reads none of them."""
        return self.held.items()


class Unread(NamedTuple):
    """A key that looks like RoPE and does not agree with what was read."""

    path: str
    value: Any
    means: str
    write: str

    @property
    def is_beside(self) -> bool:
        """True for a key of the level itself, not of a dict in it."""
        return "." not in self.path and "[" not in self.path

    def __str__(self) -> str:
        return printable(f"{self.path} is {show(self.value)}, which usually means {self.means}, and is not read")


@dataclass(frozen=True)
class Facts:
    """Results of reading one level: its Ropes, other widths of its heads, and the keys that the reader used."""

    ropes: tuple[Rope, ...]
    widths: tuple[int, ...] = ()
    read: frozenset[str] = frozenset()

    def has(self, key: str, value: Any) -> bool:
        """Return whether a Rope has a value, or each of a list, under a name of its scheme."""
        if isinstance(value, list | tuple) and key == "rope_theta":  # 0 or None: a layer without
            return all(not one or self.has(key, one) for one in value)
        return any(one.source.rope_parameters.get(key) == value for one in self.ropes)

    def rotates(self, value: Any) -> bool:
        """Return whether a fraction of a head, or each of a list, is what a Rope rotates."""
        if isinstance(value, list | tuple):
            return all(map(self.rotates, value))
        if not isinstance(value, int | float) or self.has("partial_rotary_factor", value):
            return isinstance(value, int | float)
        widths = {*self.widths, *(one.head_dim or 0 for one in self.ropes)}
        return any(int(value * width) == one.rotary_dim for width in widths for one in self.ropes)

    def pairs(self, key: str, value: Any) -> bool:
        """Return whether a flag for the pairing says that of a Rope."""
        return any(read_pairing(key, value) == one.pairing for one in self.ropes)

    def starts(self, value: Any) -> bool:
        """Return whether a length is the original context of a Rope, or its only one."""
        key = "original_max_position_embeddings"
        return any(value == one.source.rope_parameters.get(key, one.context) for one in self.ropes)

    @property
    def is_latent(self) -> bool:
        """True if the reader found latent attention."""
        return any(one.source.model.turns_last or one.qk_head_dim != one.head_dim for one in self.ropes)


# Keys as patterns, what they usually mean, what to type, and whether a value agrees; the first pattern counts.
_KINDS: tuple[tuple[str, str, str, Callable[[str, Any, Facts], bool]], ...] = (
    (_PAIRS, "which two features form a block", "pairing=", lambda key, value, f: f.pairs(key, value)),
    (
        r"(?:use|apply|enable|has)_.*(?:scaled|dynamic|ntk|yarn|xpos|nope|alibi|[23]d).*|alibi|.*use_nope|rope_[23]d",
        "another scheme, or attention without RoPE",
        "rope_parameters with the scheme",
        lambda key, value, f: (
            value is False or not f.ropes or (key[-2:] in ("2d", "3d") and any(one.sections for one in f.ropes))
        ),
    ),
    ("use_mla", "latent attention", "qk_rope_head_dim", lambda key, value, f: not f.ropes or value == f.is_latent),
    (
        "(?:use|apply|enable|has)_.*|rope|rotary",
        "that layers rotate, or do not",
        "the names of layers that do in layer_types, with a dict for them in rope_parameters",
        lambda key, value, f: value is True or (value is False and (not f.ropes or "mrope" in key)),
    ),
    (
        r"(?:pos|position)_.*",
        "another way for positions",
        'no base where it is not "rope"',
        lambda key, value, f: not f.ropes or "rot" in str(value) or "rope" in str(value),
    ),
    (
        r"no_?rope.*|nope_.*|.*_nope_layers?.*|.*rope_(?:layers?|interval).*|yarn_only_types",
        "a choice of the layers that rotate",
        "layer_types, with a dict in rope_parameters for each kind that does",
        lambda key, value, f: key in f.read,
    ),
    (r".*nope_(?:head_)?dim", "a width without positions", "no such key", lambda key, value, f: True),
    (
        r".*(?:rope|freq)_base|base_freq|.*rotary_(?:emb_|embedding_)?base|.*thetas?|.*rope_.*base_freq",
        "a base",
        "rope_theta in rope_parameters",
        lambda key, value, f: f.has("rope_theta", value),
    ),
    (
        r".*(?:rot|rope).*_(?:pct|percent|percentage|fraction)|partial_rotary_factors?",
        "the part of a head that rotates",
        "partial_rotary_factor in rope_parameters",
        lambda key, value, f: f.rotates(value),
    ),
    (
        r"(?:.*_)?(?:rotary|rope|rot)_(?:emb_)?(?:head_)?(?:n?dims?|size|width)|n_rot|attn_rotary_emb",
        "the number of features that rotate",
        "partial_rotary_factor, or qk_rope_head_dim with latent attention",
        lambda key, value, f: value == 0 or any(value == one.rotary_dim for one in f.ropes),
    ),
    (
        r"original_(?:max_position_embeddings|seq_len|context_length)|initial_context_length",
        "the context before a scheme",
        "original_max_position_embeddings in rope_parameters",
        lambda key, value, f: f.starts(value),
    ),
    (
        "yarn|llama_4_scaling",
        "YaRN in Mistral's own form",
        'rope_parameters: {"rope_type": "yarn", "factor": ..., "beta_fast": its beta, "beta_slow": its alpha, '
        '"original_max_position_embeddings": ...}, and "attention_factor": 1.0 if apply_scale is false',
        lambda key, value, f: False,
    ),
    (
        r".*(?:factor|scale|mscale\w*|rope_ratio|alpha)|(?:rope_)?type|.*rope_(?:scaling|parameters|config)",
        "a scheme for longer contexts",
        'rope_parameters: {"rope_type": ..., "factor": ..., "original_max_position_embeddings": ...}',
        lambda key, value, f: value == 1 or f.has("rope_type" if key == "type" else key, value),
    ),
    (
        ".*",
        "a parameter of RoPE",
        "its name in rope_parameters of transformers",
        lambda key, value, f: f.has(key, value),
    ),
)


def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()


def looks_like_rope(key: Any, value: Any, *, alone: bool = False) -> bool:
    """Return whether a key of a config is one of RoPE; `alone` where nothing else says that there is one."""
    if not isinstance(key, str):
        return False
    name = _snake(key)
    if name in ("type", "rope_type"):
        return isinstance(value, str) and value in _SCHEMES
    return _LIKE.fullmatch(name) is not None or (not alone and name in _WEAK)


def read_pairing(key: Any, value: Any) -> str | None:
    """Return the pairing that a flag of a config says, or None."""
    if not isinstance(key, str) or not isinstance(value, bool) or not re.fullmatch(_PAIRS, _snake(key)):
        return None
    return "interleaved" if value != ("neox" in key.lower()) else "half"


def find_unread(held: Mapping[str, Any], facts: Facts, is_part: Callable[[Any, Any], bool]) -> Iterator[Unread]:
    """Yield the keys of one level and of its dicts that look like RoPE and do not agree with what was read."""
    for path, key, value in _walk("", held, is_part, alone=not facts.ropes):
        if value is None or (isinstance(value, list | tuple | Mapping | str) and not value):
            continue
        if path in facts.read and isinstance(value, list | tuple | Mapping | str):
            continue  # what it says is not one number
        name = _snake(key)
        _, means, write, agrees = next(kind for kind in _KINDS if re.fullmatch(kind[0], name))
        if not agrees(name, value, facts) and not (value is False and means.startswith("a ")):
            yield Unread(path, value, means, write)


def _walk(
    path: str, held: Mapping[str, Any], is_part: Callable[[Any, Any], bool], *, alone: bool
) -> Iterator[tuple[str, str, Any]]:
    """Yield path, key and value of what looks like RoPE, in dicts and lists of dicts that are no parts."""
    if held.get("rope") is False or held.get("alibi") is True:
        return
    for key, value in held.items():
        place = f"{path}{key}"
        if looks_like_rope(key, value, alone=alone):
            yield place, key, value
        elif isinstance(value, Mapping) and key not in _OPAQUE and not is_part(key, value):
            yield from _walk(f"{place}.", value, is_part, alone=True)
        elif isinstance(value, list | tuple):
            for i, one in enumerate(value):
                if isinstance(one, Mapping):
                    yield from _walk(f"{place}[{i}].", one, is_part, alone=True)
