"""Account for every key of a config that looks like RoPE: it agrees with what was read, or it is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from rfrope._core.arguments import printable, show
from rfrope.data.model_types import read_table
from rfrope.rotation.rope import Rope
from rfrope.scaling import registry

# dicts that do not say how a model rotates
_OPAQUE = ("quantization_config", "compression_config", "generation_config", "id2label", "label2id", "auto_map")
_WORD = r"(?:[a-z0-9]*(?<!eu)(?<!t)(?<!g)(?<!p)rope|rope[a-z0-9]*|rotary|rot|yarn|d?ntk|nope|xpos|alibi|thetas?)"
_LIKE = re.compile(
    rf"(?:.*_)?(?:{_WORD}|is_neox(?:_style)?|use_mla|inv_freq|low_freq_factor|(?:pos|position)_.*_type)(?:_.*)?"
)
# these mean RoPE beside other keys of it, and may mean something else where there are none
_WEAK = {*registry.KEYS, "attn_factor", "extrapolation_factor", "scaling_factor", "original_seq_len", "freq_base"}
_WEAK |= {"original_context_length", "initial_context_length", "llama_4_scaling"}
# keys as patterns, what they usually mean, what to type, and what a value agrees with; the first counts
_KINDS: tuple[Mapping[str, str], ...] = read_table("rope_keys")
_SEVERAL = (dict, list, tuple, str, Mapping)
_SCHEMES = {alias for one in registry.records() for alias in (one.name, *one.aliases)} - {"default"}


class Record(dict[str, Any]):
    """One level of a config, which remembers the keys that were read."""

    def __init__(self, held: Mapping[str, Any]) -> None:
        super().__init__(held)
        self.held, self.read = held, set[str]()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return dict.__getitem__(self, key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or a default."""
        self.read.add(key)
        return dict.get(self, key, default)


class Unread(NamedTuple):
    """A key that looks like RoPE and does not agree with what was read."""

    path: str
    value: Any
    means: str
    write: str

    def __str__(self) -> str:
        value = show(self.value)
        if isinstance(self.value, Mapping | list | tuple) and len(str(self.value)) > len(value):
            is_dict = isinstance(self.value, Mapping)
            value = f"a dict of {', '.join(map(str, self.value))}" if is_dict else f"{len(self.value)} values"
        return printable(f"{self.path} is {value}, which usually means {self.means}, and is not read")


@dataclass(frozen=True)
class Facts:
    """Results of reading one level: its Ropes, other widths of its heads, and the keys that the reader used."""

    ropes: tuple[Rope, ...]
    widths: tuple[int, ...] = ()
    read: Set[str] = frozenset()

    def has(self, key: str, value: Any) -> bool:
        """Return whether a Rope has a value, or each of a list of bases, under a name of its scheme."""
        if isinstance(value, list | tuple) and key == "rope_theta":  # 0 or None: a layer without
            return all(not one or self.has(key, one) for one in value)
        return value in [one.source.rope_parameters.get(key) for one in self.ropes]

    def rotates(self, value: Any) -> bool:
        """Return whether a fraction of a head, or each of a list, is what a Rope rotates."""
        if isinstance(value, list | tuple):
            return all(map(self.rotates, value))
        if not isinstance(value, int | float) or self.has("partial_rotary_factor", value):
            return isinstance(value, int | float)
        widths = {*self.widths, *(one.head_dim or 0 for one in self.ropes)}
        return any(int(value * width) == one.rotary_dim for width in widths for one in self.ropes)

    def starts(self, value: Any) -> bool:
        """Return whether a length is the original context of a Rope, or its only one."""
        key = "original_max_position_embeddings"
        return value in [one.source.rope_parameters.get(key, one.context) for one in self.ropes]

    def is_latent(self) -> bool:
        """Return whether a Rope is of latent attention."""
        return any(one.source.model.turns_last or one.qk_head_dim != one.head_dim for one in self.ropes)


# whether the value of a key says what was read, by the names in the table of keys
_AGREES: Mapping[str, Callable[[Facts, str, Any], bool]] = {
    "has": Facts.has,
    "is_base": lambda facts, key, value: facts.has("rope_theta", value),
    # a factor of 1 changes nothing
    "is_scheme": lambda facts, key, value: value == 1 or facts.has("rope_type" if key == "type" else key, value),
    "rotates": lambda facts, key, value: facts.rotates(value),
    "is_width": lambda facts, key, value: value in (0, *(one.rotary_dim for one in facts.ropes)),
    "pairs": lambda facts, key, value: read_pairing(key, value) in [one.pairing for one in facts.ropes],
    "starts": lambda facts, key, value: facts.starts(value),
    "is_latent": lambda facts, key, value: not facts.ropes or value == facts.is_latent(),
    "is_on": lambda facts, key, value: value is True or (value is False and (not facts.ropes or "mrope" in key)),
    "is_off": lambda facts, key, value: value is False or (not facts.ropes and not isinstance(value, Mapping)),
    "is_rope": lambda facts, key, value: not facts.ropes or "rot" in str(value) or "rope" in str(value),
    "is_read": lambda facts, key, value: key in facts.read,
    "has_axes": lambda facts, key, value: value is False or any(one.sections for one in facts.ropes),
    "is_no_rotation": lambda facts, key, value: True,  # the width of what does not rotate
}


@lru_cache(4096)
def _find_kind(name: str) -> Mapping[str, str]:
    return next(kind for kind in _KINDS if re.fullmatch(kind["keys"], name))


@lru_cache(4096)
def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()


@lru_cache(4096)
def looks_like_rope(key: Any, alone: bool) -> bool:
    """Return whether a key of a config is one of RoPE; `alone` where nothing else says that there is one."""
    return isinstance(key, str) and bool(_LIKE.fullmatch(_snake(key)) or (not alone and _snake(key) in _WEAK))


def read_pairing(key: Any, value: Any) -> str | None:
    """Return the pairing that a flag of a config says, or None."""
    if not isinstance(key, str) or not isinstance(value, bool) or not re.fullmatch(_KINDS[0]["keys"], _snake(key)):
        return None
    return "interleaved" if value != ("neox" in key.lower()) else "half"


def find_unread(held: Mapping[str, Any], facts: Facts, is_part: Callable[[Any, Any], bool]) -> Iterator[Unread]:
    """Yield the keys of one level and of its dicts that look like RoPE and do not agree with what was read."""
    for path, key, value in _walk("", held, is_part, alone=not facts.ropes):
        if value is None or (isinstance(value, _SEVERAL) and (not value or path in facts.read)):
            continue  # what it says, if anything, is not one number
        kind = _find_kind(_snake(key))
        agrees = _AGREES[kind["agrees"]](facts, _snake(key), value)
        if not agrees and not (value is False and kind["means"].startswith("a ")):
            yield Unread(path, value, kind["means"], kind["write"])


def _walk(
    path: str, held: Mapping[str, Any], is_part: Callable[[Any, Any], bool], *, alone: bool
) -> Iterator[tuple[str, str, Any]]:
    """Yield path, key and value of what looks like RoPE, in dicts and lists of dicts that are no parts."""
    if held.get("rope") is False or held.get("alibi") is True:
        return
    for key, value in held.items():
        place = f"{path}{key}"
        if (
            value in _SCHEMES
            if key in ("type", "rope_type") and isinstance(value, str)
            else looks_like_rope(key, alone)
        ):
            yield place, key, value
        elif isinstance(value, Mapping) and key not in _OPAQUE and not is_part(key, value):
            yield from _walk(f"{place}.", value, is_part, alone=True)
        elif isinstance(value, list | tuple):
            for i, one in enumerate(value):
                if isinstance(one, Mapping):
                    yield from _walk(f"{place}[{i}].", one, is_part, alone=True)
