"""Arms of the experiments on polar rotation: what attention knows of positions, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch
from torch import nn
from trained import Layer, Reader

import rfrope
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding

FEATURES = 64  # of a token, and of all heads together
TRAINED, READ = 128, 2048  # tokens
LAGS = (0, *(2**i for i in range(11)))  # at which recovered kernels are written down


@dataclass(frozen=True)
class Arm:
    """What attention knows of positions.

    Attributes
    ----------
    sets : tuple of str
        What each head turns by: "geometric" for RoPE's ladder of base 10000, or a kernel; "constant" does not turn.
    polar : bool
        Whether contents are polar: magnitudes by softplus, one frequency for each, with `PolarEmbedding.score_scale`.
    design : str
        How frequencies of kernels are made; see `rfrope.design`.
    bias : bool
        Whether polar keys learn a bias of their phases, within -2 pi and 0.
    published_scale : bool
        Whether scores of polar contents have PoPE's scale, one over the root of a head's features.
    wider : int
        How many times the features of values queries and keys have.
    windows : tuple of int or None
        How many tokens each head sees, itself included; all up to it unless given.
    slopes : tuple of float
        What each head loses in its scores with each token of distance, as in ALiBi.
    fourier : bool
        Whether blocks turn by sums of waves, as in FoPE.
    """

    sets: tuple[str, ...] = ("constant", "constant")
    polar: bool = False
    design: str = "optimised"
    bias: bool = True
    published_scale: bool = False
    wider: int = 1
    windows: tuple[int | None, ...] = ()
    slopes: tuple[float, ...] = ()
    fourier: bool = False

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.sets)

    @property
    def width(self) -> int:
        """Features of a head's values."""
        return FEATURES // self.heads

    def turn(self, seed: int) -> nn.Module | None:
        """Return a module that turns queries and keys; frequencies that are drawn depend on the seed."""
        width = self.wider * self.width
        if self.fourier:
            return Fourier(self.heads, width, seed)
        if not self.polar and set(self.sets) == {"constant"}:
            return None
        n = width if self.polar else width // 2
        seeds = [(seed, head) if self.design == "iid" else None for head in range(self.heads)]
        made = [frequencies(text, n, self.design, one) for text, one in zip(self.sets, seeds, strict=True)]
        rope = rfrope.Rope(np.stack(made)[..., None], polar=self.polar)
        return PolarEmbedding(rope, "phases" if self.bias else False) if self.polar else RotaryEmbedding(rope)

    def layer(self, seed: int) -> Layer:
        """Return a layer; what an arm has more than others is drawn by `model`."""
        turn, bias = self.turn(seed), None
        scale = getattr(turn, "score_scale", None)
        if self.published_scale:
            scale = self.width**-0.5
        if self.windows or self.slopes:
            slopes, windows = self.slopes or (0.0,), self.windows or (None,)

            def bias(tokens: int) -> torch.Tensor:
                return seen(tokens, slopes, windows)

        return Layer(self.heads, self.width, turn, scale=scale, bias=bias)


@cache
def frequencies(text: str, n: int, design: str, seed: tuple[int, int] | None) -> np.ndarray:
    """Return the frequencies of one head ``(n,)``; those that are optimised have the least error at any lag read.

    A least mean square over so many lags would give up the near ones, which are few, of a kernel of scale 4.
    """
    if text == "constant":
        return np.zeros(n)
    if text == "geometric":
        return np.asarray(rfrope.geometric(n))
    norm = "sup" if design == "optimised" else None
    made = rfrope.design(text, head_dim=n, context=READ, design=design, norm=norm, rng=list(seed or (0,)), polar=True)
    return np.asarray(made.frequencies).reshape(n)


def ladder(family: str, heads: int, first: float = 4.0, last: float = 64.0, **parameters: float) -> tuple[str, ...]:
    """Return kernels of one family whose scales go from the first head to the last at equal ratios."""
    scales = np.geomspace(first, last, heads)
    return tuple(repr(rfrope.kernel(family, scale=round(float(scale), 6), **parameters)) for scale in scales)


@lru_cache(2)
def seen(tokens: int, slopes: tuple[float, ...], windows: tuple[int | None, ...]) -> torch.Tensor:
    """Return what is added to scores ``(heads, tokens, tokens)``: less with distance, and -inf for what is not seen."""
    lag = torch.arange(tokens) - torch.arange(tokens)[:, None]  # key minus query
    reach = torch.tensor([tokens if window is None else window for window in windows])[:, None, None]
    return (torch.tensor(slopes)[:, None, None] * lag).masked_fill((lag > 0) | (lag <= -reach), -math.inf)


class Fourier(nn.Module):
    """Fourier position embedding (Hua et al., 2024): blocks turn by sums of waves.

    CosSin of RoPE's ladder that are longer than the trained length are left out, and their blocks do not turn. In the
    place of cos and of sin each other block has a sum over all waves that are kept: its own, and all with coefficients
    drawn from a normal law of standard deviation 0.3 over the root of their number, for each head anew and for cos and
    sin apart; they are not learned, and alike in both layers.
    """

    def __init__(self, heads: int, width: int, seed: int) -> None:
        super().__init__()
        omega = torch.from_numpy(np.asarray(rfrope.geometric(width // 2)))
        self.kept = omega[omega >= math.tau / TRAINED]
        self.still = len(omega) - len(self.kept)
        n = len(self.kept)
        drawn = torch.randn((2, heads, n, n), generator=torch.Generator().manual_seed(seed))
        self.coefficients = torch.eye(n) + 0.3 * n**-0.5 * drawn

    def forward(self, q: torch.Tensor, k: torch.Tensor, positions: None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys ``(batch, heads, tokens, features)`` at consecutive positions."""
        u = torch.arange(q.shape[-2])[:, None] * self.kept
        waves = torch.stack((u.cos(), u.sin())).float()[:, None] @ self.coefficients
        cos = nn.functional.pad(waves[0], (0, self.still), value=1.0)
        sin = nn.functional.pad(waves[1], (0, self.still))
        return tuple(torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in (x.chunk(2, -1) for x in (q, k)))


def model(arm: Arm, seed: int, tokens: int = 256) -> Reader:
    """Return a model of an arm; all arms have the same weights of a seed, and some have more."""
    made = Reader(seed, tokens, FEATURES, lambda: arm.layer(seed))
    if arm.wider > 1:
        for layer in made.layers:
            layer.widen(arm.wider)
    return made


@torch.no_grad()
def recovered(model: Reader, tokens: torch.Tensor) -> list[dict[str, np.ndarray]]:
    """Return for each head of polar contents what attention makes of distance after training.

    Parameters
    ----------
    model : Reader
        With `PolarEmbedding` in its layers; empty without.
    tokens : tensor of int, (batch, tokens)
        Text, whose mean magnitudes weigh the frequencies.

    Returns
    -------
    list of dict
        Layer by layer and head by head: "kernel", mean score at each of `LAGS` behind a query, over the highest that it
        could be, at contents that do not depend on the lag: ``sum_i A_i cos(delta_i - lag omega_i) / sum_i A_i``, where
        A is the mean magnitude of queries times that of keys; "bias", delta in radians; "weights", A.
    """
    found, x = [], model.embedding(tokens)
    lags = torch.tensor(LAGS, dtype=torch.float64)
    for layer in model.layers:
        turn = layer.rotary
        if isinstance(turn, PolarEmbedding):
            q, k = (nn.functional.softplus(one).double().mean((0, 2)) for one in layer.contents(x)[:2])
            omega = torch.tensor(np.asarray(turn.rope.frequencies))[..., 0]
            delta = torch.zeros_like(omega) if turn.phases is None else turn.phases.clamp(-math.tau, 0.0)
            weights = q * k
            waves = torch.cos(delta[:, None] - lags[:, None] * omega[:, None])
            kernel = (weights[:, None] * waves).sum(-1) / weights.sum(-1, keepdim=True)
            named = {"kernel": kernel, "bias": delta, "weights": weights}
            found += [{name: one[head].numpy() for name, one in named.items()} for head in range(layer.heads)]
        x = layer(x)
    return found


def written(before: list[dict[str, np.ndarray]], after: list[dict[str, np.ndarray]]) -> dict[str, str]:
    """Return columns of a row from what was `recovered` before and after training, heads parted by semicolons.

    "kernels" and "first kernels", after and before, at `LAGS`; "bias", its root mean square in radians; "blocks", the
    share of them that count, ``(sum A)^2 / (D sum A^2)``; "magnitudes", by how much log A changed in root mean square.
    """
    if not after:
        return {}
    pairs = list(zip(before, after, strict=True))
    moved = [np.log(new["weights"] / old["weights"]) for old, new in pairs]
    weights = [new["weights"] for _, new in pairs]
    return {
        "kernels": _listed(new["kernel"] for _, new in pairs),
        "first kernels": _listed(old["kernel"] for old, _ in pairs),
        "bias": _listed(np.sqrt(np.mean(new["bias"] ** 2)) for _, new in pairs),
        "blocks": _listed(one.sum() ** 2 / np.sum(one**2) / len(one) for one in weights),
        "magnitudes": _listed(np.sqrt(np.mean(one**2)) for one in moved),
    }


def _listed(heads: Iterable[np.ndarray]) -> str:
    return "; ".join(" ".join(f"{value:.4f}" for value in np.atleast_1d(head)) for head in heads)


_SLOPES = (2.0**-4, 2.0**-8)  # two heads, as ALiBi has for more

BASELINES = {
    "none": Arm(),
    "none, polar contents": Arm(("constant",) * 2, polar=True, bias=False),
    "RoPE": Arm(("geometric",) * 2),
    "RoPE, twice the width": Arm(("geometric",) * 2, wider=2),
    "RoPE, 8 heads": Arm(("geometric",) * 8),
    "RoPE, window": Arm(("geometric",) * 2, windows=(64,)),
    "RoPE with window, and none": Arm(("geometric", "constant"), windows=(64, None)),
    "ALiBi": Arm(slopes=_SLOPES),
    "FoPE": Arm(("geometric",) * 2, fourier=True),
    "PoPE": Arm(("geometric",) * 2, polar=True),
    "PoPE, published scale": Arm(("geometric",) * 2, polar=True, published_scale=True),
    "PoPE, 8 heads": Arm(("geometric",) * 8, polar=True),
    "PoPE and none": Arm(("geometric", "constant"), polar=True),
}
_TWO = {family: ladder(family, 2) for family in ("gaussian", "cauchy")}
POLAR = {
    "polar, log_uniform": Arm(("log_uniform(low=0.0002, high=1.0)",) * 2, polar=True),
    "polar, gaussian of one scale": Arm(("gaussian(scale=32.0)",) * 2, polar=True),
    "polar, matern ladder": Arm(ladder("matern", 2, nu=1.5), polar=True),
    "polar, gaussian ladder, 4 heads": Arm(ladder("gaussian", 4), polar=True),
    "polar, gaussian ladder, 8 heads": Arm(ladder("gaussian", 8), polar=True),
    "polar, gaussian and constant": Arm(("gaussian(scale=4.0)", "constant"), polar=True),
}
POLAR |= {f"polar, {family} ladder": Arm(sets, polar=True) for family, sets in _TWO.items()}
POLAR |= {f"polar, {family} ladder, iid": Arm(sets, polar=True, design="iid") for family, sets in _TWO.items()}
POLAR |= {f"polar, {family} ladder, no bias": Arm(sets, polar=True, bias=False) for family, sets in _TWO.items()}
ARMS = BASELINES | POLAR
