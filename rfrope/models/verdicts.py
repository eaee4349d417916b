"""Findings of checks, and the verdict: one sentence from them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rfrope._core.arguments import printable
from rfrope._core.results import COPIED, Report, Result, Words

CODES = {"right": 0, "wrong": 1, "cannot tell": 2}  # exit codes of the command line
# of findings, with the status that each makes
KINDS = {"wrong": "wrong", "unknown": "cannot tell", "caution": "right", "note": "right"}
EXCEEDS = 1e-3  # error of cos and sin
_MANY = 4  # engines that a verdict counts and does not name


@dataclass(frozen=True)
class Finding(Result):
    """One thing that `audit`, `probe` or `check` found.

    Attributes
    ----------
    kind : str
        From `audit` one of "uninitialised", "width", "half precision", "frequencies", "attention factor", "rows", "too
        short", "pairing", "layers"; from `probe` also "positions", "sections", "direction", "heads", "state", "not
        linear", "attention" (it does not get the result of the rotation), "softmax scale". From `check` "wrong" (a
        fault), "unknown" (a gap that prevents a verdict), "caution" (a key that is not read as it looks) or "note".
    where : str
        Name of the buffer, table or layer, part of the config, or engine.
    text : str
        The finding in words, and the known mistake that a fault looks like.
    position : int or None
        First position at which a cos or sin is off by more than 1e-3; None if there is none within the context, or
        below 2^24 without a context. From `probe`, the first of the measured positions.
    fix : str
        Text to type or write; "" if there is none.

    See Also
    --------
    models.audit, models.probe, models.check

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(8), context=64)
    >>> found = rfrope.models.audit(rfrope.geometric(8, base=1e5), rope)
    >>> found.findings[0].kind, found.findings[0].where, found.findings[0].position
    ('frequencies', 'frequencies', 1)
    """

    kind: str
    where: str
    text: str
    position: int | None = None
    fix: str = ""

    def __str__(self) -> str:
        first = "" if self.position is None else f"; off by more than {EXCEEDS:g} first at position {self.position}"
        return printable(": ".join(filter(None, (self.where, self.text))) + first)

    @property
    def lines(self) -> list[str]:
        """The finding, and below it what to type, on a line that is not broken."""
        return [f"  {self}", *([f"{COPIED}{printable(self.fix)}"] if self.fix else [])]


@dataclass(frozen=True, eq=False)
class Check(Result):
    """The verdict on a model's RoPE.

    Attributes
    ----------
    status : {"right", "wrong", "cannot tell"}
    findings : tuple of Finding
        Those that decide the verdict come first.
    rope : tuple of str
        The RoPE of each kind of layer, in words.
    engines : tuple of Finding
        One finding per engine: a note if it agrees with the reference. Empty if there is no config.

    See Also
    --------
    models.check, models.Finding

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> found = rfrope.models.check(config)
    >>> found.passed, found.verdict
    (True, 'right: default, base 10000, 16 of 16 features, pairs half')
    """

    status: str
    findings: tuple[Finding, ...]
    rope: tuple[str, ...] = ()
    engines: tuple[Finding, ...] = ()
    _also = ("verdict", "passed")

    @property
    def passed(self) -> bool:
        """True if the verdict is right."""
        return self.status == "right"

    @property
    def verdict(self) -> str:
        """One sentence: right, wrong or cannot tell, and why."""
        if reasons := self._reasons:
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            return printable(f"{self.status}: {reasons[0]}{more}")
        said = self.rope[0] if len(self.rope) == 1 else f"{len(self.rope)} kinds of layers"
        where = [one.where for one in self.engines if one.kind == "wrong"]
        differing = [*dict.fromkeys(re.sub(r"( \(read, not run\))?(, .*)?$", "", one) for one in where)]
        if any(one.kind == "caution" for one in self.findings):
            said += "; but not all keys are read as they look, see below"
        if not differing:
            return f"right: {said}"
        names = " and ".join(differing) if len(differing) < _MANY else f"{len(differing)} engines"
        return f"right in transformers: {said}; {names} {'differ' if len(differing) > 1 else 'differs'}, see below"

    @property
    def _reasons(self) -> list[Finding]:
        """Findings that decide the verdict."""
        return [one for one in self.findings if KINDS[one.kind] == self.status != "right"]

    def report(self) -> Report:
        """Return the verdict, the findings, the RoPE and the engines."""
        first = self._reasons[:1]
        lines = [self.verdict, *(line for one in first for line in one.lines[1:])]
        titles = {"wrong": "Also wrong", "unknown": "Not clear", "caution": "Take care", "note": "To know"}
        for kind, title in titles.items():
            if found := [line for one in self.findings if one.kind == kind and one not in first for line in one.lines]:
                lines += ["", f"{title}:", *found]
        if self.rope:
            lines += ["", "RoPE:", *(f"  {one}" for one in self.rope)]
        if self.engines:
            lines += ["", "Engines, and what to type for each:"]
            told = sorted((one for one in self.engines if one not in first), key=lambda one: not one.fix)
            typed = [one for one in told if one.kind == "wrong" or (one.fix and one.kind == "note")]
            lines += [line for one in typed for line in one.lines]
            alike: dict[str, list[str]] = {}
            for one in told:
                if one.kind == "unknown" or (one.kind == "note" and not one.fix):
                    said = one.text if one.kind == "note" else "not known for this model"
                    alike.setdefault(said, []).append(one.where)
            lines += [f"  {printable(text)}: {'; '.join(names)}" for text, names in alike.items()]
        return Report([Words(lines)], self.verdict)
