"""``rfrope inspect``: report on the RoPE of a model, a base or a file of frequencies over its context."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

import rfrope
from rfrope import analysis, models, scaling
from rfrope._core.arguments import positive, printable
from rfrope._core.results import Copyable, Report, Table, Words
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, is_saved, lengths, print_text, read_ropes, whole
from rfrope.plotting import panels
from rfrope.plotting.panels import Curve, Panel
from rfrope.scaling.registry import describe_reach, stretched

_BY_LENGTH = tuple(scheme.name for scheme in scaling.records() if scheme.by_length)
_FOUND = """< 1/2, < 0: the first distance at which equal content scores less than one half, or less than 0 (1 at
distance 0, averaged over contents); lowest: the smallest such score within the context; score x: factor of
all scores, not included in the other columns; never turn: blocks of a head that complete no turn within
the context."""
_POLAR = "\nWith polar frequencies this holds for any two tokens, not only for equal content; a block is one magnitude."
_MADE = "Wavelengths in positions. Nearest kernel: to the curve of the blocks that turn."


@dataclass(frozen=True, eq=False)
class _Set:
    """Frequencies ``(D,)`` or ``(D, k)`` of one head or of one part of a model, with the Rope that they are from."""

    label: str
    rope: rfrope.Rope
    frequencies: np.ndarray
    contexts: tuple[int, ...]  # what is seen, on each axis or on all
    seq_len: int | None = None  # length of the text for which a model was read

    @cached_property
    def summary(self) -> analysis.Summary:
        """The report on its frequencies, whose axes move together."""
        rope = replace(self.rope, frequencies=self.frequencies, sections=None, interleaved=False)
        return analysis.summarise(rope, self.contexts, name=self.label)

    @property
    def parameters(self) -> dict[str, Any]:
        """Scheme of the config, with its values."""
        return self.rope.source.rope_parameters

    @property
    def curve(self) -> Curve:
        """Curve of the whole head, without the attention factor."""
        still = max((self.rope.qk_head_dim + 1) // 2 - len(self.frequencies), 0)
        return Curve(self.label, self.frequencies, max(self.contexts) - 1, still)


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "inspect",
        _run,
        "Report on the frequencies of a model, a base or a file over a context: wavelengths, channels that complete "
        "no turn, the score of equal content by distance, the base they imply and the nearest kernel. Several are "
        "shown side by side.",
        example="rfrope inspect config.json; rfrope inspect --base 500000 --head-dim 128 --context 131072",
    )
    option, source = command.add_argument, "a Hugging Face config.json, its folder, or a file that rfrope.save wrote"
    option("sources", nargs="*", metavar="SOURCE", help=source)
    option("--base", type=float, action="append", metavar="B", help="base of standard RoPE (repeatable)")
    option("--head-dim", type=whole, metavar="d", help="rotated width of a head, for --base")
    option("--context", type=lengths, metavar="N", help="number of positions (default: the SOURCE's); N,M for two axes")
    option("--seq-len", type=whole, metavar="n", help="length of text for dynamic and longrope (default: the context)")
    add_files(command, "html")


def _run(options: argparse.Namespace) -> None:
    found = [*_read_bases(options), *(one for source in options.sources for one in _read_source(source, options))]
    if not found:
        raise ValueError("nothing to inspect; expected a config.json, a file of frequencies, or --base with --head-dim")
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    page.emit(
        options,
        f"RoPE of {', '.join(one.label for one in found[:3])}{more}",
        _report(found),
        {"sets": [_list_scheme(one) | one.summary.to_dict() for one in found]},
    )


# -- reading -----------------------------------------------------------------------------------------------------------


def _read_bases(options: argparse.Namespace) -> Iterator[_Set]:
    if options.head_dim is not None and not options.base:
        raise ValueError(f"--head-dim {options.head_dim}: expected it with --base; a SOURCE has its own")
    if options.seq_len is not None and not options.sources:
        raise ValueError(f"--seq-len {options.seq_len}: expected it with a SOURCE whose scheme depends on it")
    for base in options.base or ():
        if options.head_dim is None or options.context is None:
            raise ValueError(f"--base {base:g}: expected --head-dim and --context with it")
        parameters = {"rope_type": "default", "rope_theta": positive("base", base)}
        rope = models.from_rope_parameters(parameters, head_dim=options.head_dim)
        yield _Set(f"base {base:.12g}", rope, rope.frequencies, options.context)


def _read_source(source: str, options: argparse.Namespace) -> Iterator[_Set]:
    if is_saved(source):
        yield from _read_saved(source, options)
        return
    if options.context is not None and len(options.context) > 1:
        raise ValueError(f"--context is {options.context}: a model's config has one axis; expected one number")
    parts = read_ropes(source, seq_len=options.seq_len)
    texts = {name: rope.context if options.context is None else options.context[0] for name, rope in parts.items()}
    if not any(texts.values()):
        raise ValueError(f"{source} gives no context; expected --context")
    for name, rope in parts.items():
        text, label = texts[name], printable(f"{source}: {name}" if name else source)
        if text is None:  # a vision encoder, whose positions are patches of an image
            print_text(f"{label} is left out: it gives no context. Add --context N to read it.", file=sys.stderr)
            continue
        assert isinstance(text, int)  # that of a model
        scheme = rope.source.rope_parameters["rope_type"]
        if scheme in _BY_LENGTH and options.seq_len is None:
            rope = read_ropes(source, seq_len=text)[name]
        omega = rope.vectors if scheme == "axial" else rope.frequencies
        windows = rope.source.model.windows if options.context is None else {}
        held = {kind: None if window is None or window >= text else window for kind, window in windows.items()}
        for kind, window in held.items() if len(set(held.values())) > 1 else [("", next(iter(held.values()), None))]:
            seen = text if window is None else window
            if seen < 2:
                raise ValueError(f"{label} gives a context of {seen}; expected 2 or more, or --context")
            one = replace(rope, source=replace(rope.source, model=replace(rope.source.model, window=window)))
            label_of_kind = f"{label}: {kind}" if kind else label
            yield from _split_heads(_Set(label_of_kind, one, omega, (seen,), options.seq_len or text))


def _read_saved(source: str, options: argparse.Namespace) -> Iterator[_Set]:
    rope = rfrope.load(source)
    context = rope.context if options.context is None else options.context
    if context is None:
        raise ValueError(f"{source} holds no context; expected --context")
    omega, contexts = rope.frequencies.astype(np.float64), context if isinstance(context, tuple) else (context,)
    yield from _split_heads(_Set(printable(source), rope, omega, contexts))


def _split_heads(one: _Set) -> Iterator[_Set]:
    """Yield the set of each head, or the one of all."""
    heads = one.frequencies.shape[:-2]
    for number, at in enumerate(np.ndindex(heads)):
        yield replace(one, label=f"{one.label}, head {number}", frequencies=one.frequencies[at]) if heads else one


# -- words and tables --------------------------------------------------------------------------------------------------


def _report(sets: list[_Set]) -> Report:
    """Return what one set is, or tables of several, and what schemes have changed."""
    reports = [one.summary.report() for one in sets]
    said = [(one.label, describe_reach(one.rope), *one.rope.source.model.remarks) for one in sets]
    cautions = [f"{label}: {word}" if len(sets) > 1 else word for label, *words in said for word in words if word]
    parts: list[Any] = [Words(cautions), lambda: [_draw(sets)]]
    if len(sets) == 1:
        verdict, parts = reports[0].verdict, [*parts, *reports[0].parts, *map(Words, _describe_scheme(sets[0]))]
    else:
        found, made = _rows(sets)
        parts += [Table(found, note=_FOUND + (_POLAR if any(one.rope.polar for one in sets) else ""))]
        parts += [Table(made, left=(0, 3), note=_MADE)]
        each = zip(sets, reports, strict=True)
        verdict = " ".join(f"{one.label}: {report.verdict.removeprefix('In short: ')}" for one, report in each)
        schemes = ((one.label, *each) for one in sets for each in enumerate(_describe_scheme(one)))
        parts += [Words(lines if number else [label, *lines]) for label, number, lines in schemes]
    for one in sets:
        if one.parameters:
            parts.append(Words([_describe_pairing(one.rope)]))
            held = {"rope_parameters": one.parameters, "max_position_embeddings": one.rope.context}
            parts.append(Copyable(f"Parameters of {one.label}, as they were understood", held))
    return Report(parts, verdict)


def _describe_pairing(rope: rfrope.Rope) -> str:
    """Return the pairing of a config's Rope, and where it is from."""
    model, origin = rope.source.model, rope.source.model.pairing_from
    if origin is None:
        return ""
    sources = {
        "known": f"from the table of model types ({model.model_type})",
        "given": "as given",
        "config": "from the config",
        "assumed": f"assumed: {model.model_type or 'the model type'} is unknown",
    }
    last = ", the last features of a head" if model.turns_last else ""
    note = f"; {model.note}" if model.note else ""
    return printable(f"Pairing: {rope.pairing or 'neither'}, {sources[origin]}{last}{note}.")


def _describe_scheme(one: _Set) -> Iterator[list[str]]:
    """Yield paragraphs on axes that share the blocks, and on a scheme for longer contexts."""
    sections, name = one.rope.sections, one.parameters.get("rope_type", "default")
    if sections is not None and one.frequencies.ndim == 1:
        order = "interleaved" if one.rope.interleaved else "one after the other"
        shared = f"Axes: the blocks are shared as {list(sections)} among the axes of the positions, {order}."
        yield [shared, "The table above moves all axes together, as in text."]
    if name in ("axial", "default", "rfrope"):
        return
    lines = [f"Scheme: {name}{f', read for a text of {one.seq_len} positions' if name in _BY_LENGTH else ''}."]
    before = stretched(one.rope)
    if before is not None:
        further = one.seq_len is not None and one.seq_len < before.reach
        lines += [f"  The config is {before}{f'; --context {before.reach} reads it there' if further else ''}."]
    yield lines


def _list_scheme(one: _Set) -> dict[str, Any]:
    """Return the scheme of a config as data, and what else its Rope says; None where the Rope is of no config."""
    if not one.parameters:
        return {"scheme": None}
    rope, model, before = one.rope, one.rope.source.model, stretched(one.rope)
    about = {name: getattr(rope, name) for name in ("head_dim", "rotary_dim", "pairing", "sections", "interleaved")}
    about |= {name: getattr(model, name) for name in ("pairing_from", "model_type", "window")}
    about |= {"rope_parameters": one.parameters, "stretched": before and before.to_dict(), "seq_len": one.seq_len}
    return {"scheme": about | {"caution": describe_reach(rope), "remarks": list(model.remarks)}}


_Rows = list[tuple[str, ...]]


def _rows(sets: list[_Set]) -> tuple[_Rows, _Rows]:
    """Two tables, their heads first: what the frequencies do over the context, and what they are."""
    found: _Rows = [("frequencies", "context", "< 1/2", "< 0", "lowest", "never turn", "score x")]
    made: _Rows = [("frequencies", "D", "wavelengths", "nearest kernel")]
    for summary in (one.summary for one in sets):
        for along in summary.axes:
            label = f"{summary.name}, axis {along.axis}" if len(summary.axes) > 1 else str(summary.name)
            still = summary.slots - along.n_turning + along.n_dead
            places = ["never" if lag is None else str(lag) for lag in (along.half_lag, along.first_negative_lag)]
            factor = f"{summary.attention_factor**2:.4g}"
            found.append((label, str(along.context), *places, f"{along.lowest:.3f}", str(still), factor))
            wavelengths = f"{along.shortest:.4g} to {along.longest:.4g}"
            made.append((label, str(summary.n_blocks), wavelengths, "-" if along.fit is None else along.fit.label))
    return found, made


def _draw(sets: list[_Set]) -> Panel:
    """Return mean kernels, with other bases and schemes for the ladder of the first."""
    first, context = sets[0].parameters, max(max(one.contexts) for one in sets)
    ladder = (first.get("rope_theta"), first.get("original_max_position_embeddings") or max(sets[0].contexts))
    content = "content on average" if all(one.rope.polar for one in sets) else "equal content"
    return panels.mean_kernels(f"Score of {content}", [one.curve for one in sets], context, ladder=ladder)
