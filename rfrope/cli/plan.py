"""``rfrope plan``: compare methods for a longer context of a trained model, and write the config of one."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import rfrope
from rfrope import analysis, engines, storage
from rfrope._core.results import Copyable, Report, Words
from rfrope.analysis.planning import ladder_base
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, list_names, naming, print_text, read_ropes, whole
from rfrope.plotting import panels
from rfrope.plotting.panels import Curve, Panel


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "plan",
        _run,
        "Compare methods for a longer context of a trained model: YaRN, NTK, llama3, linear and unchanged; ordered by "
        "the perplexity measured on one small model, with their geometry. A config that is already stretched is "
        "planned from the ladder before that. Prints the config of the first method, or of --method.",
        example="rfrope plan config.json --context 131072 -o rope.npz && "
        "rfrope export rope.npz --to vllm --model config.json -o new.json",
    )
    option = command.add_argument
    trained = "positions in training (default: the SOURCE's, before a scheme stretched it)"
    option("source", metavar="SOURCE", help="a Hugging Face config.json, its folder, or what rfrope.save wrote")
    option("--context", type=whole, metavar="N", required=True, help="positions to reach")
    option("--trained", type=whole, metavar="L", help=trained)
    option("--part", metavar="NAME", help="which RoPE of a config, as text_config or full_attention")
    option("--method", metavar="NAME", help="method whose config is printed (default: the first)")
    add_files(command, "output", "html")


def _run(options: argparse.Namespace) -> None:
    ropes = dict(_read_trained(options))
    single = [f"--{name}" for name in ("method", "output") if getattr(options, name) is not None]
    if len(ropes) > 1 and single:
        raise ValueError(
            f"{single[0]}: {options.source} has several RoPEs; expected one of {list_names(ropes)} as --part"
        )
    found, chosen = {}, {}
    for name, rope in ropes.items():
        found[name] = analysis.plan(rope, options.context, trained_context=options.trained)
        with naming("--method", options.method):
            chosen[name] = found[name].methods[0] if options.method is None else found[name].method(options.method)
    method = next(iter(chosen.values()))
    said = {name: one.report().verdict for name, one in found.items()}
    verdict = " ".join([f"{name}: {one}" if name else one for name, one in said.items()])
    parts = [part for name, one in found.items() for part in _parts(name, one, chosen[name], options.trained)]
    plans = [{"name": name} | one.to_dict() | {"config": _config(chosen[name])} for name, one in found.items()]
    page.emit(
        options,
        f"{options.source} to {options.context} positions",
        Report(parts, verdict),
        {"plans": plans},
        output=lambda path: storage.packed(path, method.rope),
    )


def _read_trained(options: argparse.Namespace) -> Iterator[tuple[str, rfrope.Rope]]:
    """Yield the RoPEs that a longer context is for, by their names in the config."""
    ropes = read_ropes(options.source, options.part)
    reasons = {name: _find_obstacle(rope, options.trained) for name, rope in ropes.items()}
    for name, reason in reasons.items():
        if reason and all(reasons.values()):
            raise ValueError(f"{options.source} has nothing to plan: {name or 'it'} {reason}")
        if reason:
            print_text(f"{name} is left out: it {reason}.", file=sys.stderr)
            continue
        trained: Any = options.trained or ropes[name].context
        with naming("--trained", trained):  # schemes that depend on the length of the text
            found = read_ropes(options.source, seq_len=trained)[name]
        yield name, found


def _find_obstacle(rope: rfrope.Rope, trained: int | None) -> str:
    """Return the reason why a longer context means nothing to a RoPE, or ""."""
    window, longest = rope.source.model.window, trained or rope.context
    if rope.source.rope_parameters.get("rope_type") == "axial":
        return "turns by the two axes of a picture"
    if longest is None:
        return "gives no context; expected --trained"
    if window is not None and isinstance(longest, int) and window < longest:
        return f"sees {window} positions, however long the text is"
    return ""


def _parts(name: str, plan: analysis.Plan, chosen: analysis.Method, trained: int | None) -> Iterator[Any]:
    """Yield for a RoPE the report on its methods, their mean kernels, and their configs."""
    start, *others = plan.report().parts
    assert isinstance(start, Words)
    yield Words([*([name] if name else []), *start.sentences])
    yield lambda: [_draw(f"Score of equal content{f': {name}' if name else ''}", plan)]
    yield from others
    more = "" if trained is None else f"--trained {trained} "
    yield Words(  # what asks the model itself: a scheme of its config is read there as it is here
        [
            "Nothing above ran your model on a text. This command does, and learns from these starts:",
            f"rfrope tune MODEL --texts FILE ... --context {plan.context} {more}-o rope.npz",
        ]
    )
    yield _describe(chosen)


def _draw(title: str, plan: analysis.Plan) -> Panel:
    ladder = (ladder_base(plan.method("as it is").rope), plan.trained_context)
    as_it_is = [method.name for method in plan.methods].index("as it is")
    still = max((plan.methods[0].rope.qk_head_dim + 1) // 2 - plan.n_blocks, 0)
    curves = [Curve(method.name, method.rope.frequencies, plan.context - 1, still) for method in plan.methods]
    return panels.mean_kernels(title, curves, plan.context, ladder=ladder, stretched=as_it_is)


def _config(method: analysis.Method) -> dict[str, Any] | str:
    """Return the config of transformers for a method, or the reason why there is none."""
    if method.rope_parameters is not None:
        return {"rope_parameters": method.rope_parameters, "max_position_embeddings": method.rope.context}
    try:
        return engines.export(method.rope, "transformers")
    except ValueError as error:
        return str(error)


def _describe(method: analysis.Method) -> Words | Copyable:
    """Return the config of a method, as text without long lists of numbers."""
    config = _config(method)
    if isinstance(config, str):
        return Words([f"A config cannot hold {method.name}: {config}."])

    text = json.dumps(config)
    short = re.sub(r"\[[^\[\]]{80,}\]", "[...]", text)
    where = "" if short == text else "; all numbers with --json, or in a config by -o and `rfrope export`"
    title = f"Config for {method.name} (transformers)"
    return Copyable(title, config, text=f"{title}{where}:\n{short}")
