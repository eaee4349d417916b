"""``rfrope inspect``: what the RoPE of a model, a base or a file of frequencies does over its context."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import rfrope
from rfrope import analysis, models, plotting, scaling
from rfrope._core import angles
from rfrope._core.arguments import printable
from rfrope.cli import page
from rfrope.cli.shared import (
    add_plot,
    check_files,
    contexts,
    even,
    print_table,
    print_text,
    whole,
    write_figure,
)
from rfrope.scaling.registry import stretched

_FREQUENCY_FILES = (".npz", ".safetensors")
_BY_LENGTH = tuple(scheme.name for scheme in scaling.records() if scheme.by_length)
_FOUND = """< 1/2, < 0: the first distance at which a token scores less than one half, or less than 0, with
its own like (1 at the same place, averaged over contents); lowest: the smallest such score within
the context; score x: the factor that these scores are without. never turn: blocks, of all features
of a head, that complete no turn within the context."""
_MADE = "Wavelengths in positions. Nearest kernel: to the curve of the blocks that turn."


@dataclass(frozen=True, eq=False)
class _Set:
    """Frequencies of one head or one part of a model, with what is known of them."""

    label: str
    frequencies: np.ndarray
    context: int  # the longest
    attention_factor: float = 1.0
    model: rfrope.Rope | None = None
    seq_len: int | None = None
    base: float | None = None
    contexts: tuple[int, ...] | None = None  # one for each axis, where they differ
    head_dim: int | None = None  # features that a score compares, where a model or a file says it

    @property
    def scheme(self) -> dict[str, Any]:
        """Scheme and values of a model."""
        return {} if self.model is None else self.model.source.rope_parameters


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "inspect",
        help="say what the frequencies of a model, of a base or of a file do over a context",
        description="Read the RoPE of models from their config.json files, or frequencies from files or bases, and say "
        "what they do over a context: wavelengths, channels that never turn, the score of equal content against "
        "distance, the base they imply and the kernel they are nearest to. Several are put side by side. "
        "Exit code: 0, or 2 for bad input.",
        epilog="Examples: rfrope inspect config.json; rfrope inspect --base 500000 --head-dim 128 --context 131072",
    )
    command.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help="a Hugging Face config.json, its folder, or a file that `rfrope design` or rfrope.save wrote",
    )
    command.add_argument("--base", type=_base, action="append", metavar="B", help="standard RoPE; may be given again")
    command.add_argument("--head-dim", type=even, metavar="d", help="rotated width of a head, for --base")
    command.add_argument(
        "--context",
        type=contexts,
        metavar="N",
        help="number of positions (default: what the SOURCE says); N,M for two axes",
    )
    command.add_argument(
        "--seq-len",
        type=whole(1),
        metavar="n",
        help="length of text for which dynamic and longrope schemes are read (default: the context)",
    )
    add_plot(command)
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=_run)


def _base(text: str) -> float:
    """Argument type: a positive number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a base; expected a positive number")
    return value


def _run(options: argparse.Namespace) -> int:
    sets = _distinct(
        [*_read_bases(options), *(one for source in options.sources for one in _read_source(source, options))]
    )
    if not sets:
        raise ValueError(
            "no frequencies to inspect; expected a config.json, a file of frequencies, or --base with --head-dim"
        )
    check_files(options)
    summaries = [
        analysis.summarise(
            one.frequencies,
            one.contexts or one.context,
            attention_factor=one.attention_factor,
            head_dim=one.head_dim,
            name=one.label,
        )
        for one in sets
    ]
    if options.plot is not None:
        write_figure(options, _figure(sets))

    def data() -> dict[str, Any]:
        described = [_about(one) | summary.to_dict() for one, summary in zip(sets, summaries, strict=True)]
        return {"sets": described, "plot": options.plot, "html": options.html}

    title = f"RoPE of {_title_of(sets)}"
    page.report(options, title, _parts(sets, summaries), lambda: _print(sets, summaries), data)
    return 0


def _print(sets: list[_Set], summaries: list[analysis.Summary]) -> None:
    if len(summaries) == 1:
        print_text("\n".join([str(summaries[0]), *(line for part in _scheme(sets[0]) for line in ("", part))]))
    else:
        _print_side_by_side(sets, summaries)


def _distinct(sets: list[_Set]) -> list[_Set]:
    """Number the labels that are given twice."""
    counts, seen, numbered = Counter(one.label for one in sets), Counter[str](), []
    for one in sets:
        seen[one.label] += 1
        label = f"{one.label} ({seen[one.label]})" if counts[one.label] > 1 else one.label
        numbered.append(replace(one, label=label))
    return numbered


def _read_bases(options: argparse.Namespace) -> Iterator[_Set]:
    if options.head_dim is not None and not options.base:
        raise ValueError(f"--head-dim {options.head_dim}: expected it with --base; a SOURCE has its own")
    if options.seq_len is not None and not options.sources:
        raise ValueError(f"--seq-len {options.seq_len}: expected it with a SOURCE whose scheme depends on it")
    for base in options.base or ():
        if options.head_dim is None or options.context is None:
            raise ValueError(f"--base {base:g}: expected --head-dim and --context with it")
        omega = rfrope.geometric(options.head_dim // 2, base=base)
        yield _Set(f"base {base:.12g}", omega, _one_context(options, f"base {base:g}"), base=base)


def _one_context(options: argparse.Namespace, what: str) -> int:
    """Return the number of ``--context``, where there is one axis."""
    if len(options.context) > 1:
        given = ",".join(map(str, options.context))
        raise ValueError(f"--context {given}: {what} has one axis; expected one number")
    context: int = options.context[0]
    return context


def _read_source(source: str, options: argparse.Namespace) -> Iterator[_Set]:
    if source.lower().endswith(_FREQUENCY_FILES):
        yield from _read_frequency_file(source, options)
        return
    parts = rfrope.from_config(source, seq_len=options.seq_len)
    texts = [part.context if options.context is None else _one_context(options, "a model's config") for part in parts]
    if not any(texts):
        raise ValueError(f"{source} gives no context; expected --context")
    for index, (part, text) in enumerate(zip(parts, texts, strict=True)):
        name = part.source.model.name
        label = printable(f"{source}: {name}" if name else source)
        if text is None:  # a vision encoder, whose positions are patches of an image
            print_text(f"{label} is left out, because it gives no context: --context N reads it.", file=sys.stderr)
            continue
        assert isinstance(text, int)  # that of a model
        scheme = part.source.rope_parameters["rope_type"]
        if scheme in _BY_LENGTH and options.seq_len is None:
            part = rfrope.from_config(source, seq_len=text)[index]
        omega = part.vectors if scheme == "axial" else part.frequencies
        for kind, window in _kinds(part, text, options).items():
            seen = text if window is None else window
            if seen < 2:
                raise ValueError(f"{label} gives a context of {seen}; expected 2 or more, or --context")
            one = replace(part, source=replace(part.source, model=replace(part.source.model, window=window)))
            length = options.seq_len or text
            label_of = f"{label}: {kind}" if kind else label
            width = part.qk_head_dim
            yield _Set(label_of, omega, seen, part.attention_factor, one, length, head_dim=width)


def _kinds(part: rfrope.Rope, text: int, options: argparse.Namespace) -> dict[str, int | None]:
    """Windows of the layers of one RoPE that see less of the text than all, by kind; one entry if all see the same."""
    windows = part.source.model.windows if options.context is None else {"": None}
    held = {kind: None if window is None or window >= text else window for kind, window in windows.items()}
    return held if len(set(held.values())) > 1 else {"": next(iter(held.values()))}


def _read_frequency_file(source: str, options: argparse.Namespace) -> Iterator[_Set]:
    held = rfrope.load(source)
    found = held.context if options.context is None else options.context
    lengths = found if isinstance(found, tuple) else (found or 0,)
    if min(lengths) < 2:
        raise ValueError(f"{source} holds no context; expected --context")
    omega = held.frequencies.astype(np.float64)
    axes = angles.read_on_host(held).shape[-1]
    if len(lengths) not in (1, axes):
        given = ",".join(map(str, lengths))
        raise ValueError(f"--context {given}: {source} has {axes} axes; expected one number, or one for each axis")
    heads = omega.shape[:-2]
    factor, width = held.attention_factor, held.qk_head_dim
    for head, at in enumerate(np.ndindex(heads)):
        label = printable(f"{source}, head {head}" if heads else source)
        yield _Set(label, omega[at], max(lengths), factor, contexts=lengths, head_dim=width)


def _scheme(one: _Set) -> Iterator[str]:
    """Paragraphs on axes that share the blocks, and on what a scheme for longer contexts has changed."""
    if one.model is None or one.scheme["rope_type"] == "axial":
        return
    if one.model.sections is not None:
        yield "\n".join(_lines_of_sections(one))
    effect = _effect(one)
    if effect is None:
        return
    name = one.scheme["rope_type"]
    read = f", read for a text of {one.seq_len} positions," if name in _BY_LENGTH else ""
    ratio = effect["wavelength_ratio"]
    stopped, slowed = int(np.sum(np.isinf(ratio))), int(np.sum(np.isfinite(ratio) & (ratio > 1.0)))
    done = [f"stops {stopped} of {len(ratio)} blocks"] if stopped else []
    if slowed:
        slowest = np.max(ratio, where=np.isfinite(ratio), initial=1.0)
        done.append(f"slows {slowed} of {len(ratio)} blocks, at most {slowest:.4g} times")
    moved = f"\n  It moves the scores above by up to {effect['largest_change']:.3f}, at distance {effect['at_lag']}."
    yield f"Scheme: {name}{read} {' and '.join(done) or 'changes no block'}.{moved if done else ''}{_reach(one)}"


def _reach(one: _Set) -> str:
    """Return a sentence on a config that is stretched already: how far, and how to read it there."""
    found = None if one.model is None else stretched(one.model)
    if found is None:
        return ""
    further = (
        f"; --context {found.reach} reads it there" if one.seq_len is not None and one.seq_len < found.reach else ""
    )
    return f"\n  The config is {found}{further}."


def _lines_of_sections(one: _Set) -> Iterator[str]:
    assert one.model is not None
    assert one.model.sections is not None
    order = "interleaved" if one.model.interleaved else "one after the other"
    yield f"Axes: the blocks are shared as {list(one.model.sections)} among the axes of the positions, {order}."
    yield "Above all axes move together, as they do along text. Along one axis alone, as within an image or a video:"
    for along in analysis.summarise(one.model.vectors, one.context, head_dim=one.head_dim).axes:
        yield (
            f"  axis {along.axis}: {along.n_turning} blocks turn, {along.n_dead} of them complete no turn within the "
            f"context; the score, averaged over contents, is never below {along.lowest:.3f}."
        )


def _effect(one: _Set) -> dict[str, Any] | None:
    """Return the change that a model's scheme makes to the ladder of its base; None without a scheme."""
    if one.model is None or one.scheme["rope_type"] in ("axial", "default", "rfrope"):
        return None  # frequencies of a design or a list were made from no ladder
    held = one.scheme
    plain: dict[str, Any] = {name: held[name] for name in ("rope_theta", "partial_rotary_factor") if name in held}
    if held["rope_type"] == "proportional":  # the fraction is a part of this scheme, not what it is made from
        plain.pop("partial_rotary_factor", None)
    assert one.model.head_dim is not None  # set by every Rope
    before = models.from_rope_parameters(plain, head_dim=one.model.head_dim).frequencies
    still = np.zeros((one.model.qk_head_dim + 1) // 2 - len(before))
    whole, changed = (np.concatenate([omega, still]) for omega in (before, one.frequencies))
    effect = analysis.scaling_effect(np.arange(1, one.context), whole, changed)
    ratio = np.asarray(analysis.wavelengths(one.frequencies)) / analysis.wavelengths(before)
    return {
        "largest_change": float(effect.largest),
        "at_lag": int(effect.largest_at),
        "wavelength_ratio": ratio,
    }


def _about(one: _Set) -> dict[str, Any]:
    if one.model is None:
        return {"scheme": None}
    effect = _effect(one)
    if effect is not None:
        ratio = effect["wavelength_ratio"].tolist()
        effect |= {"wavelength_ratio": [value if math.isfinite(value) else None for value in ratio]}
    names = ("head_dim", "rotary_dim", "pairing", "sections", "interleaved")
    scheme = {name: getattr(one.model, name) for name in names}
    source = one.model.source
    scheme |= {"model_type": source.model.model_type, "window": source.model.window}
    scheme |= {"rope_parameters": source.rope_parameters}
    already = stretched(one.model)
    scheme |= {"stretched": None if already is None else already.to_dict()}
    return {
        "scheme": scheme
        | {"pairing_from": one.model.source.model.pairing_from, "seq_len": one.seq_len, "effect": effect}
    }


_Rows = list[tuple[str, ...]]


def _rows(sets: list[_Set], summaries: list[analysis.Summary]) -> tuple[_Rows, _Rows]:
    """Two tables, their heads first: what the frequencies do over the context, and what they are."""
    found: _Rows = [("frequencies", "context", "< 1/2", "< 0", "lowest", "never turn", "score x")]
    made: _Rows = [("frequencies", "D", "wavelengths", "nearest kernel")]
    for one, summary in zip(sets, summaries, strict=True):
        for along in summary.axes:
            label = f"{one.label}, axis {along.axis}" if len(summary.axes) > 1 else one.label
            still = (summary.head_dim + 1) // 2 - along.n_turning + along.n_dead
            places = ["never" if lag is None else str(lag) for lag in (along.half_lag, along.first_negative_lag)]
            factor = f"{summary.attention_factor**2:.4g}"
            found.append((label, str(along.context), *places, f"{along.lowest:.3f}", str(still), factor))
            lengths = f"{along.shortest:.4g} to {along.longest:.4g}"
            made.append((label, str(summary.n_blocks), lengths, "-" if along.fit is None else along.fit.label))
    return found, made


def _print_side_by_side(sets: list[_Set], summaries: list[analysis.Summary]) -> None:
    found, made = _rows(sets, summaries)
    print_table(found, left=(0,))
    print_text(f"\n{_FOUND}\n")
    print_table(made, left=(0, 3))
    print_text(f"\n{_MADE}")
    for one in sets:
        for part in _scheme(one):
            print_text(f"\n{one.label}\n{part}")


def _figure(sets: list[_Set]) -> Any:
    """Two panels: mean kernels of whole heads, each over its own context, and wavelengths of the blocks."""
    figure, (left, right) = plotting.new_figure(2)
    whole_heads = {one.label: _whole_head(one) for one in sets}
    contexts = {one.label: one.context for one in sets}
    plotting.mean_kernels(whole_heads, {label: context - 1 for label, context in contexts.items()}, ax=left)
    plotting.wavelengths({one.label: one.frequencies for one in sets}, context=contexts, ax=right)
    left.set_title("score of equal content")
    right.set_title("wavelengths of the blocks")
    return figure


def _whole_head(one: _Set) -> np.ndarray:
    """Frequencies with zeros for the features of a head that are not turned, as the text counts them."""
    return np.concatenate([one.frequencies, np.zeros((_still(one), *one.frequencies.shape[1:]))])


def _still(one: _Set) -> int:
    """Blocks of the head that are not turned."""
    return max(((one.head_dim or 0) + 1) // 2 - len(one.frequencies), 0)


def _title_of(sets: list[_Set]) -> str:
    """Return a title."""
    return ", ".join(one.label for one in sets[:3]) + (f" and {len(sets) - 3} more" if len(sets) > 3 else "")


def _parts(sets: list[_Set], summaries: list[analysis.Summary]) -> Iterator[page.Part]:
    """Yield what was found, mean kernels, the two tables, and the parameters to copy."""
    yield page.words(*(str(summary).partition("\n\n")[0] for summary in summaries))
    found, made = _rows(sets, summaries)
    curves = [page.Curve(one.label, one.frequencies, one.context - 1, still=_still(one)) for one in sets]
    context = max(one.context for one in sets)
    yield page.curves("Score of equal content", curves, context, ladder=_ladder(sets[0]))
    yield page.table("Over the context", found, note=_FOUND)
    yield page.table("What they are", made, left=(0, 3), note=_MADE)
    for one in sets:
        if one.scheme:
            held = {"rope_parameters": one.scheme, "max_position_embeddings": one.model and one.model.context}
            yield page.copyable(f"Parameters of {one.label}, as they were understood", held)


def _ladder(one: _Set) -> tuple[float, int] | None:
    """Return the base of a model's ladder, or the one that was given, and the positions in training."""
    base = one.scheme.get("rope_theta", one.base)
    return None if base is None else (base, one.scheme.get("original_max_position_embeddings") or one.context)
