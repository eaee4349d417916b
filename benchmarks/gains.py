"""What randomised designs gain over independent draws, and what is possible at all: ``python -m benchmarks.gains``.

Errors are root mean squares of ``Phi_D - Phi`` over whole lags and over the sets of a design whose blocks all have the
kernel's law. `limit` is one that no such design falls below.

With ``--polar`` errors are those of scores: of ``S - Phi sum A`` over ``Phi sum A``, at the lag where Phi is one half,
over the draws of a design and 200 contents. Those of RoPE's contents, whose mean may be next to 0, are medians.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy, see benchmarks.designs

import argparse
import math
import pathlib
import sys
from collections.abc import Callable

import numpy as np

import rfrope
from benchmarks import machine
from rfrope import kernels
from rfrope.kernels import Kernel
from rfrope.validation import default_lags

BLOCKS, SEED = 64, 0
N_SETS = {"iid": 400, "stratified": 400, "shifted": 400, "balanced": 60}
HEAVY = ("power_exponential(exponent=0.8, scale=32)",)  # beside the example of each family
RANGES = {256: None, 1024: ("exponential", "power_exponential")}  # families that are looked at over longer ranges too
SHARES = (0.06, 0.09, 0.125, 0.17, 0.22, 0.3, 0.4)  # parts of the lags that go into the windows
OVER = 8  # points of the circle for each lag
HEADER = ("kernel", "max lag", *N_SETS, "pairs", "folded", "rotated", "limit")
CONTENTS = 200
DEALT = "optimised, dealt"
POLAR_SETS = {"iid": 4000, "antithetic": 4000, "halton": 4000, "sobol": 4000} | {
    "stratified": 4000,
    "shifted": 4000,
    "balanced": 200,
}
POLAR_HEADER = ("kernel", "lag", "RoPE iid", "RoPE stratified", *POLAR_SETS, DEALT, "limit")


def cases() -> list[tuple[Kernel, int]]:
    """Kernels of one axis, all that are not one frequency, and ranges."""
    found = [record.example for record in kernels.records() if record.name not in ("shell", "constant")]
    return [
        (kernel, reach)
        for reach, names in RANGES.items()
        for kernel in map(kernels.parse, [*found, *HEAVY])
        if names is None or kernel.name in names
    ]


def rms(kernel: Kernel, sets: np.ndarray, reach: int) -> float:
    """Root mean square error over the lags and the sets ``(sets, D)``."""
    lags = np.arange(reach + 1.0)
    return float(
        np.sqrt(np.mean((rfrope.analysis.mean_kernel(lags[:, None], sets[..., None]) - kernel.phi(lags)) ** 2))
    )


def probabilities(n: int) -> dict[str, np.ndarray]:
    """Other ways to spread magnitudes, each of them uniform: what was tried and is not offered.

    Pairs U and 1 - U in double strata, with one U for each or one for all (the lattice folded by the tent map), and a
    place in each stratum that is turned by the golden section from one to the next.
    """
    u = np.random.default_rng(SEED).random((N_SETS["shifted"], n // 2))
    i, golden = np.arange(n // 2), 0.5 * (math.sqrt(5.0) - 1.0)
    return {
        "pairs": np.concatenate([i + u, i + 1.0 - u], axis=1) * 2.0 / n,
        "folded": np.concatenate([i + u[:, :1], i + 1.0 - u[:, :1]], axis=1) * 2.0 / n,
        "rotated": (np.arange(n) + (u[:, :1] + golden * np.arange(n)) % 1.0) / n,
    }


def quantiles(kernel: Kernel) -> Callable[[np.ndarray], np.ndarray]:
    """Quantile function of abs(omega), from a table of the design "quantile" where there is none."""
    if kernel.signed_columns == (True,):
        return lambda p: np.abs(kernel.transport(0.5 + 0.5 * np.clip(p, 1e-15, 1.0 - 1e-15)))
    table = np.abs(rfrope.sample(kernel, 2**16, design="quantile"))
    return lambda p: table[np.minimum((p * table.size).astype(int), table.size - 1)]


def limit(kernel: Kernel, n: int, reach: int) -> float:
    """Root mean square error that no design of n equal blocks with the kernel's law falls below.

    With e the errors at all lags, windows psi about the points w of a grid of the circle, and Fejer's kernel H, let
    ``G = sum_w tau_w psi(a - w) psi(b - w) H(a - b)``, 0 <= tau <= 1: it is nowhere negative, and as a quadratic form
    in the blocks' measure at most the sum of ``g_m e_m^2``, with g the Fourier coefficients of the same with all tau 1.
    Pairs of blocks add nothing negative, so that its mean over the design's sets is at least ``1/(2n) int G(a, a) dP -
    int int G dP dP``, which needs the law P alone, by Phi at whole lags; tau takes the windows where that is positive.
    """
    return math.sqrt(max(_limit(kernel, n, reach, max(2, round(share * reach))) for share in SHARES) / (2 * reach + 2))


def _limit(kernel: Kernel, n: int, reach: int, width: int) -> float:
    size = 1 << math.ceil(math.log2(OVER * reach))
    lags = np.abs(np.fft.fftfreq(size, 1.0 / size))
    phi = kernel.phi(np.arange(size // 2 + 1.0))[lags.astype(int)]

    def values(coefficients: np.ndarray) -> np.ndarray:
        return np.fft.ifft(coefficients).real * size

    psi = values(np.maximum(1.0 - lags / (width // 2 + 1.0), 0.0)) ** 2
    h = np.maximum(1.0 - lags / (reach - 2 * (width // 2) + 1.0), 0.0)
    window = np.fft.fft(psi) / size
    whole = np.fft.fft(values(window**2) * values(h)).real / size
    own = values(np.fft.fft(psi * psi) / size * phi) * float(np.sum(h)) / (2.0 * n)
    pairs = np.zeros(size)
    for lag in np.flatnonzero(h[: size // 2]):
        pairs += (1.0 if lag == 0 else 2.0) * h[lag] * np.abs(np.fft.ifft(window * np.roll(phi, -lag)) * size) ** 2
    return float(np.sum(np.maximum(own - pairs, 0.0)) / size / np.max(whole[1:]))


def row(kernel: Kernel, reach: int) -> dict[str, str]:
    """Errors of all designs in thousandths."""
    found = {"kernel": repr(kernel), "max lag": str(reach)}
    for design, heads in N_SETS.items():
        options = {"max_lag": reach} if design == "balanced" else {}
        sets = rfrope.sample(kernel, BLOCKS, rng=SEED, design=design, heads=heads, **options)[..., 0]
        found[design] = f"{1e3 * rms(kernel, sets, reach):.3g}"
    quantile = quantiles(kernel)
    for name, p in probabilities(BLOCKS).items():
        found[name] = f"{1e3 * rms(kernel, quantile(p), reach):.3g}"
    return found | {"limit": f"{1e3 * limit(kernel, BLOCKS, reach):.3g}"}


def contents() -> tuple[np.ndarray, ...]:
    """Features of queries and keys ``(200, 2D)``, and magnitudes ``(200, D)``: normals, and softplus of them."""
    rng = np.random.default_rng(SEED)
    q, k = rng.standard_normal((2, CONTENTS, 2 * BLOCKS))
    return q, k, *np.logaddexp(0.0, rng.standard_normal((2, CONTENTS, BLOCKS)))


def squared_errors(a: np.ndarray, b: np.ndarray, u: np.ndarray, phi: float) -> np.ndarray:
    """Mean squares, over draws of phases, of the error of each content's score over its mean."""
    scores = np.cos(u) @ a.T + np.sin(u) @ b.T
    return np.mean((scores / (phi * np.sum(a, axis=-1)) - 1.0) ** 2, axis=0)


def polar_row(kernel: Kernel, reach: int = 256) -> dict[str, str]:
    """Errors of scores of RoPE's contents and of polar ones, with the frequencies of each design."""
    lag = float(default_lags(kernel)[2, 0])
    phi, (q, k, m, n) = float(kernel(lag)), contents()
    found = {"kernel": repr(kernel), "lag": f"{lag:g}"}

    def drawn(design: str, heads: int) -> np.ndarray:
        options = {"max_lag": reach} if design == "balanced" else {}
        return lag * rfrope.sample(kernel, BLOCKS, rng=SEED, design=design, heads=heads, **options)[..., 0]

    for design in ("iid", "stratified"):
        squares = squared_errors(*rfrope.block_coefficients(q, k), drawn(design, 4000), phi)
        found[f"RoPE {design}"] = f"{math.sqrt(np.median(squares)):.3g}"
    for design, heads in POLAR_SETS.items():
        found[design] = f"{math.sqrt(np.mean(squared_errors(m * n, 0.0 * m, drawn(design, heads), phi))):.3g}"
    fit = rfrope.designs.optimise(kernel, BLOCKS, max_lag=reach).frequencies
    dealt = np.random.default_rng(SEED).permuted(np.tile(lag * fit, (4000, 1)), axis=1)
    found[DEALT] = f"{math.sqrt(np.mean(squared_errors(m * n, 0.0 * m, dealt, phi))):.3g}"
    alone = math.sqrt((1.0 + float(kernel.phi2(lag))) / 2.0 - phi * phi) / abs(phi)
    least = math.sqrt(np.mean(1.0 / rfrope.moments.effective_blocks(m, n) - 1.0 / BLOCKS))
    return found | {"limit": f"{alone * least:.3g}"}


def polar_include(table: list[dict[str, str]], note: str) -> str:
    """Return a list-table of reStructuredText."""
    lines = [f".. Made by: {note}", "", ".. list-table::", "   :header-rows: 1", ""]
    for one in [dict(zip(POLAR_HEADER, POLAR_HEADER, strict=True)), *table]:
        kernel = one["kernel"] if one["kernel"] == "kernel" else f"``{one['kernel']}``"
        cells = (kernel, *(one[name] for name in POLAR_HEADER[1:]))
        lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def include(table: list[dict[str, str]], note: str) -> str:
    """Return a list-table of reStructuredText, with gains over independent draws."""
    titles = ("kernel", "max lag", *HEADER[2:-1], "gain of balanced", "possible")
    lines = [f".. Made by: {note}", "", ".. list-table::", "   :header-rows: 1", ""]
    lines += [f"   {'*' if not i else ' '} - {title}" for i, title in enumerate(titles)]
    for one in table:
        iid, least = float(one["iid"]), float(one["limit"])
        gains = (f"{iid / float(one['balanced']):.2g}", f"{iid / least:.2g}" if least else "")
        cells = (f"``{one['kernel']}``", one["max lag"], *(one[name] for name in HEADER[2:-1]), *gains)
        lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gains", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", metavar="FILE.csv", type=pathlib.Path, help="the table; .inc goes beside it")
    parser.add_argument("--polar", action="store_true", help="errors of scores, of RoPE's contents and of polar ones")
    options = parser.parse_args(arguments)
    note, table = machine.command("benchmarks.gains"), []
    kernels_once = [kernel for kernel, reach in cases() if reach == min(RANGES)]
    for one in map(polar_row, kernels_once) if options.polar else (row(*case) for case in cases()):
        table.append(one)
        print(*(f"{name} {value}" for name, value in one.items()), sep="  ", flush=True)
    if options.output:
        text = (polar_include if options.polar else include)(table, note)
        options.output.with_suffix(".inc").write_text(text, "utf-8")
        machine.write_rows(options.output, POLAR_HEADER if options.polar else HEADER, table, note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
