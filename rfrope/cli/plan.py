"""``rfrope plan``: methods for a longer context for a trained model, and the config of one of them."""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import rfrope
from rfrope import analysis, exports, plotting, storage
from rfrope.analysis.planning import ladder_base
from rfrope.cli import page
from rfrope.cli.shared import add_plot, check_files, naming, print_text, whole, write_figure

_WIDTH = 110  # the config as text
_FEW = 8  # numbers of a list that it shows


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "plan",
        help="list methods for a longer context than a model was trained with",
        description="Read the RoPE of a model from its config.json, and list methods for a longer context: YaRN, NTK, "
        "llama3, a set of rfrope's own whose blocks meet only angles seen in training, linear, and as it is; in the "
        "order of the perplexity that was measured for one small model, with their geometry. A config that is "
        "stretched already is planned from the ladder before that. Then print the config of the first, or of --method. "
        "Exit code: 0, or 2 for bad input.",
        epilog="Example: rfrope plan config.json --context 131072 -o rope.npz && "
        "rfrope export rope.npz --to vllm --model config.json -o new.json",
    )
    command.add_argument(
        "source", metavar="SOURCE", help="a Hugging Face config.json, its folder, or what rfrope.save wrote"
    )
    command.add_argument("--context", type=whole(1), metavar="N", required=True, help="positions to reach")
    command.add_argument(
        "--trained",
        type=whole(2),
        metavar="L",
        help="positions in training (default: what the SOURCE says; its original context where a scheme stretches it)",
    )
    command.add_argument("--part", metavar="NAME", help="which RoPE of a config, as text_config or full_attention")
    command.add_argument("--method", metavar="NAME", help="whose config to print (default: the first)")
    command.add_argument("-o", "--output", metavar="FILE", help="write the Rope of that method (.npz or .safetensors)")
    add_plot(command)
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    ropes = dict(_ropes(options))
    single = [f"--{name}" for name in ("method", "output", "plot") if getattr(options, name) is not None]
    if len(ropes) > 1 and single:
        raise ValueError(f"{single[0]}: {options.source} has several RoPEs; expected one of {_names(ropes)} as --part")
    check_files(options)
    found = {
        name: analysis.plan(rope, options.context, trained_context=options.trained) for name, rope in ropes.items()
    }
    methods = {name: _method(plan, options.method) for name, plan in found.items()}
    for name, method in methods.items():
        _write(options, found[name], method)

    def data() -> dict[str, Any]:
        plans = [{"name": name} | plan.to_dict() | {"config": _config(methods[name])} for name, plan in found.items()]
        return {"plans": plans, "output": options.output, "plot": options.plot, "html": options.html}

    title = f"{options.source} to {options.context} positions"
    page.report(options, title, _parts(found, methods), lambda: _print(found, methods), data)
    return 0


def _print(found: dict[str, analysis.Plan], methods: dict[str, analysis.Method]) -> None:
    for number, (name, plan) in enumerate(found.items()):
        print_text(("\n" if number else "") + (f"{name}\n" if name else "") + f"{plan}\n\n{_case(methods[name])}")


def _parts(found: dict[str, analysis.Plan], chosen: dict[str, analysis.Method]) -> Iterator[page.Part]:
    """Yield for each RoPE the mean kernels of the methods, their measures, and their configs."""
    for name, plan in found.items():
        about, *_, last = str(plan).split("\n\n")
        yield page.words(about, last)
        label = f": {name}" if name else ""
        trained = plan.method("as it is").rope
        still = max((trained.qk_head_dim + 1) // 2 - plan.n_blocks, 0)
        sets = [page.Curve(method.name, method.rope.frequencies, plan.context - 1, still) for method in plan.methods]
        ladder = (ladder_base(trained), plan.trained_context)
        as_it_is = [method.name for method in plan.methods].index("as it is")
        yield page.curves(f"Score of equal content{label}", sets, plan.context, ladder=ladder, stretched=as_it_is)
        yield page.table(f"Methods{label}", plan.table, note=f"{plan.preface}\n\n{plan.notes}")
        first = chosen[name]
        for method in (first, *(method for method in plan.methods if method is not first)):
            config = _config(method)
            if isinstance(config, dict):
                yield page.copyable(f"Config for {method.name} (transformers){label}", config)


def _ropes(options: argparse.Namespace) -> Iterator[tuple[str, rfrope.Rope]]:
    """The RoPEs that a longer context is for, by their names in the config."""
    is_rope = options.source.lower().endswith(storage.SUFFIXES)
    parts = {} if is_rope else {one.source.model.name: one for one in rfrope.from_config(options.source)}
    if options.part is not None and not any(parts):
        raise ValueError(f"--part {options.part}: {options.source} has one RoPE; expected none")
    if is_rope:
        yield "", rfrope.load(options.source)
        return
    if options.part is not None:
        if options.part not in parts:
            raise ValueError(f"--part {options.part}: expected one of {_names(parts)}, which {options.source} has")
        parts = {options.part: parts[options.part]}
    reasons = {name: _reason_to_skip(rope, options.trained) for name, rope in parts.items()}
    if all(reasons.values()):
        name, reason = next(iter(reasons.items()))
        raise ValueError(f"{options.source} has nothing to plan: {name or 'it'} {reason}")
    for name, rope in parts.items():
        if reasons[name]:
            print_text(f"{name} is left out: it {reasons[name]}.", file=sys.stderr)
            continue
        trained: Any = options.trained or rope.context
        read = {one.source.model.name: one for one in rfrope.from_config(options.source, seq_len=trained)}
        yield name, read[name]  # schemes that depend on the length of the text, at the trained one


def _method(plan: analysis.Plan, name: str | None) -> analysis.Method:
    """The method that was asked for, or the first."""
    try:
        return plan.methods[0] if name is None else plan.method(name)
    except ValueError as error:
        raise ValueError(f"--method: {error}") from None


def _reason_to_skip(rope: rfrope.Rope, trained: int | None) -> str:
    """Return the reason why a longer context means nothing to a RoPE, or ""."""
    if rope.source.rope_parameters["rope_type"] == "axial":
        return "turns by the two axes of a picture"
    if rope.context is None and trained is None:
        return "gives no context; expected --trained"
    window, longest = rope.source.model.window, trained or rope.context
    if window is not None and isinstance(longest, int) and window < longest:
        return f"sees {window} positions, however long the text is"
    return ""


def _names(parts: Any) -> str:
    return ", ".join(map(repr, parts))


def _write(options: argparse.Namespace, plan: analysis.Plan, method: analysis.Method) -> None:
    if options.output is not None:
        with naming("-o", options.output):
            rfrope.save(options.output, method.rope, overwrite=options.force)
    if options.plot is not None:
        figure, (left, right) = plotting.new_figure(2)
        sets = {"trained": plan.method("as it is").rope.frequencies}
        sets |= {one.name: one.rope.frequencies for one in plan.methods if one.name != "as it is"}
        plotting.mean_kernels(sets, options.context - 1, ax=left)
        plotting.wavelengths(sets, context=options.context, ax=right)
        left.set_title("score of equal content")
        right.set_title("wavelengths of the blocks")
        write_figure(options, figure)


def _config(method: analysis.Method) -> dict[str, Any] | str:
    """Return the config of transformers for a method, or the reason why there is none."""
    if method.rope_parameters is not None:
        return {"rope_parameters": method.rope_parameters, "max_position_embeddings": method.rope.context}
    try:
        return exports.export(method.rope, "transformers")
    except ValueError as error:
        return str(error)


def _case(method: analysis.Method) -> str:
    config = _config(method)
    if isinstance(config, str):
        return f"No config says {method.name}: {config}."
    text = json.dumps(config)
    short = re.sub(r"\[[^\[\]]*\]", _shorten, text)
    where = "" if short == text else "; all numbers with --json, or in a config by -o and `rfrope export`"
    lines = textwrap.wrap(short, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([f"Config for {method.name} (transformers){where}:", *lines])


def _shorten(found: re.Match[str]) -> str:
    """A list of JSON, by its length and range where it is long."""
    numbers = json.loads(found[0])
    few = len(numbers) <= _FEW
    return found[0] if few else f"[{len(numbers)} numbers, {min(numbers):.6g} to {max(numbers):.6g}]"
