"""The statements of the sources as data, each with a check that measures how far the library is from it.

``python tests/support/theorems.py`` prints the table; with a path it writes the table that
docs/learn/paper.rst includes.
"""

import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np
from scipy import integrate, special

import rfrope
from rfrope import analysis, heads, moments, rotation

ROUNDING = 1e-13  # of sums of a hundred products of order 1
LAGS = np.array([-90.0, -17.0, -3.0, -1.0, 0.0, 2.0, 40.0])
FAMILIES = ("gaussian(scale=20)", "cauchy(scale=20)", "sinc(bandwidth=0.1)", "matern(nu=1.5, scale=20)")
LADDER = rfrope.geometric(64)  # d = 128, base 10000


@dataclass(frozen=True)
class Claim:
    """A statement with its place in the sources, the functions that hold it, its proof, and a check."""

    source: str
    statement: str
    functions: tuple[str, ...]
    proof: str
    error: Callable[[], float]
    bound: float  # the largest error that is accepted: rounding, or that of quadrature, or four standard errors as 4


CLAIMS: list[Claim] = []


def claim(source: str, statement: str, functions: str, proof: str, bound: float = ROUNDING) -> Callable[..., None]:
    """Enter a check into the table."""

    def enter(check: Callable[[], float]) -> None:
        CLAIMS.append(Claim(source, statement, tuple(functions.split()), proof, check, bound))

    return enter


def vectors(count: int = 2, width: int = 128) -> np.ndarray:
    """Return random content, the same every time."""
    return np.random.default_rng(7).standard_normal((count, width))


def far(found: object, wanted: object) -> float:
    """Largest difference."""
    return float(np.max(np.abs(np.asarray(found, complex) - np.asarray(wanted, complex))))


def pointed(kernel: str) -> tuple[rfrope.Kernel, np.ndarray]:
    """Return a kernel and frequencies of equal shares of its law: a quadrature of expectations."""
    return rfrope.kernels.parse(kernel), rfrope.sample(kernel, 2**16, design="quantile")


@claim("RF-RoPE, R(a)ᵀR(b)", "R(a)ᵀ R(b) = R(b − a)", "rotate", "angle addition")
def _() -> float:
    x = vectors()
    turned = rfrope.rotate(rfrope.rotate(x, 9.0, LADDER, inverse=True), 4.0, LADDER)
    return far(turned, rfrope.rotate(x, -5.0, LADDER))


@claim("RF-RoPE, (1)", "S = Σ Aᵢ cos uᵢ + Bᵢ sin uᵢ", "scores block_coefficients", "R(u) = cos u I + sin u J")
def _() -> float:
    q, k = vectors()
    a, b = rfrope.block_coefficients(q, k)
    u = -5.0 * LADDER
    return far(rfrope.scores(q[None], k[None], [9], [4], LADDER)[0, 0], np.sum(a * np.cos(u) + b * np.sin(u)))


@claim("RF-RoPE, Lemma 1", "E sin u = E sin u cos u = 0 for symmetric laws", "Kernel.transport", "ω to −ω", 1e-12)
def _() -> float:
    worst = 0.0
    for name in FAMILIES:
        cube = (np.arange(2**12) + 0.5)[:, None] / 2**12  # symmetric about one half
        u = (
            LAGS
            * rfrope.kernels.parse(name).transport(np.repeat(cube, rfrope.kernels.parse(name).n_columns, 1))[:, None]
        )
        worst = max(worst, float(np.max(np.abs([np.mean(np.sin(u), 0), np.mean(np.sin(u) * np.cos(u), 0)]))))
    return worst


@claim("RF-RoPE, (2)", "Φ(Δ) = E cos(Δ · ω)", "Kernel.phi sample", "definition; quantile quadrature", 2e-3)
def _() -> float:
    return max(far(analysis.mean_kernel(LAGS, omega), kernel(LAGS)) for kernel, omega in map(pointed, FAMILIES))


@claim(
    "RF-RoPE, Theorem 2", "E S = (q · k) Φ(Δ)", "expected_score estimate_scores", "(1) and Lemma 1, by linearity", 4.0
)
def _() -> float:
    q, k = vectors(2, 32)
    found = rfrope.estimate_scores(q, k, LAGS, "matern(nu=1.5, scale=20)", n_trials=2**14, rng=1).mean
    wanted = rfrope.expected_score(q, k, LAGS, "matern(nu=1.5, scale=20)")
    return float(np.max(np.abs(found.value - wanted) / np.maximum(found.stderr, 1e-12)))


@claim("RF-RoPE, Corollary 3", "Φ positive definite, continuous, Φ(0) = 1: a law exists", "bochner.from_function",
       "Bochner", 1e-9)  # fmt: skip
def _() -> float:
    made = rfrope.bochner.from_function(lambda x: np.exp(-0.5 * (x / 7.0) ** 2))
    return far(made(LAGS), np.exp(-0.5 * (LAGS / 7.0) ** 2))


@claim("RF-RoPE, Proposition 4", "Var Sᵢ = (A² + B²)/2 + (A² − B²)/2 Φ₂ − A² Φ²", "score_variance",
       "cos² and sin² by the double angle", 1e-9)  # fmt: skip
def _() -> float:
    q, k = vectors(2, 2)
    a, b = (float(x[0]) for x in rfrope.block_coefficients(q, k))
    kernel = rfrope.kernel("cauchy", scale=20.0)

    def moment(power: int) -> float:
        density = lambda w: 10.0 * np.exp(-20.0 * abs(w)) * (a * np.cos(3 * w) + b * np.sin(3 * w)) ** power  # noqa: E731
        return sum(integrate.quad(density, *ends, limit=400)[0] for ends in ((-3.0, 0.0), (0.0, 3.0)))

    return abs(float(rfrope.score_variance(q, k, 3.0, kernel)) - (moment(2) - moment(1) ** 2))


@claim("RF-RoPE, after Proposition 4", "Var S = Σ Var Sᵢ for independent blocks", "estimate_scores score_variance",
       "independence", 4.0)  # fmt: skip
def _() -> float:
    q, k = vectors(2, 32)
    found = rfrope.estimate_scores(q, k, LAGS, "sinc(bandwidth=0.1)", n_trials=2**14, rng=1).variance
    wanted = rfrope.score_variance(q, k, LAGS, "sinc(bandwidth=0.1)")
    return float(np.max(np.abs(found.value - wanted) / np.maximum(found.stderr, 1e-12)))


@claim("RF-RoPE, rate", "the relative error falls as D^(−1/2) where q · k grows like D", "moments.relative_error",
       "the variance of D equal blocks is D times one")  # fmt: skip
def _() -> float:
    ones = (np.ones(2 * blocks) for blocks in (16, 64))
    small, large = (moments.relative_error(x, x, 5.0, "gaussian(scale=20)") for x in ones)
    return abs(float(small / large) - 2.0)


@claim("RF-RoPE, Gaussian", "exp(−r²/2σ²): normal frequencies, 1/σ", "kernel", "characteristic function", 1e-9)
def _() -> float:
    density = lambda w: 20.0 / np.sqrt(2 * np.pi) * np.exp(-0.5 * (20.0 * w) ** 2) * np.cos(30.0 * w)  # noqa: E731
    return abs(integrate.quad(density, -1, 1, limit=400)[0] - float(rfrope.kernel("gaussian", scale=20.0)(30.0)))


@claim("RF-RoPE, Cauchy (corrected)", "1/(1 + (Δ/b)²): Laplace of scale 1/b", "kernel", "characteristic function", 1e-9)
def _() -> float:
    density = lambda w: 20.0 * np.exp(-20.0 * w) * np.cos(30.0 * w)  # noqa: E731
    return abs(integrate.quad(density, 0, 3, limit=400)[0] - float(rfrope.kernel("cauchy", scale=20.0)(30.0)))


@claim("RF-RoPE, sinc", "Π sin(Wx)/(Wx): uniform on (−W, W) in each axis", "kernel", "integral of a cosine")
def _() -> float:
    x = np.array([3.0, 40.0])
    return far(rfrope.kernel("sinc", bandwidth=0.1, ndim=2)(x), np.prod(np.sin(0.1 * x) / (0.1 * x)))


@claim("RF-RoPE, Matérn (corrected)", "Student t with 2ν degrees of freedom", "kernel", "characteristic function", 1e-8)
def _() -> float:
    with mpmath.workdps(20):
        density = lambda w: (3 / 400 + w**2) ** -2 * mpmath.cos(30 * w)  # noqa: E731
        ends = [k * mpmath.pi / 30 for k in range(0, 400)]
        mass = mpmath.quad(lambda w: (3 / mpmath.mpf(400) + w**2) ** -2, [0, 0.1, 1, mpmath.inf])
        found = mpmath.quad(density, ends) / mass
    return abs(float(found) - float(rfrope.kernel("matern", nu=1.5, scale=20.0)(30.0)))


@claim("RF-RoPE, deterministic RoPE", "no Φ with S = (q · k) Φ: sines do not cancel", "analysis.sine_share",
       "a content with q · k = 0 and S ≠ 0", 0.0)  # fmt: skip
def _() -> float:
    q, k = np.zeros((2, 128))
    q[0], k[64] = 1.0, 1.0  # one block, at a right angle: q . k = 0
    return 0.0 if abs(rfrope.scores(q[None], k[None], [9], [4], LADDER)[0, 0]) > 0.9 else 1.0


@claim("RF-RoPE, density of states", "p(θ) ∝ 1/θ: equal numbers in equal ratios, exactly", "geometric",
       "ln θᵢ is linear in i")  # fmt: skip
def _() -> float:
    return far(np.diff(np.log(LADDER)), -np.log(1e4) / 64)


@claim("RF-RoPE, Theorem 6", "abs Φ(Δ) ≤ 1 = Φ(0)", "Kernel.phi", "abs cos ≤ 1", 1e-15)
def _() -> float:
    lags = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 4001)])
    values = [record.factory()(lags) for record in rfrope.kernels.records() if record.factory().ndim == 1]
    return max(max(far(value[0], 1.0), float(np.max(np.abs(value))) - 1.0) for value in values)


@claim("RF-RoPE, learned shifts (corrected)", "Sᵢ = Cᵢ cos(uᵢ + φᵢ) + Eᵢ sin(uᵢ + φᵢ)", "heads.shifted_scores",
       "R(a)ᵀ R(b) = R(b − a)")  # fmt: skip
def _() -> float:
    q, k = vectors()
    shift = np.random.default_rng(1).uniform(-np.pi, np.pi, 64)
    direct = rfrope.scores(q[None], rfrope.rotate_by_phases(k, shift)[None], [9], [4], LADDER)[0, 0]
    return far(heads.shifted_scores(q, k, -5.0, LADDER, shift), direct)


@claim(
    "RF-RoPE, recentring", "φᵢ = L · ωᵢ moves the peak to −L where Cᵢ > 0", "heads.phase_shift", "cos is largest at 0"
)
def _() -> float:
    lags = np.arange(-200.0, 1.0)
    curve = heads.shifted_mean_kernel(lags, LADDER, heads.phase_shift(-37, LADDER))
    return far(lags[np.argmax(curve)], -37.0) + far(np.max(curve), 1.0)


@claim("Zhao, isometry", "R q is as long as q", "rotate", "R is orthogonal")
def _() -> float:
    q = vectors(1)[0]
    return abs(float(np.linalg.norm(rfrope.rotate(q, 12345, LADDER)) - np.linalg.norm(q)))


@claim("Zhao, random key", "E over a random unit key of (Rq) · k is 0", "analysis.similarity", "k to −k")
def _() -> float:
    keys = vectors(16)
    keys = np.concatenate([keys, -keys])  # every key with its opposite: the mean is exact
    return abs(float(np.mean(keys @ rfrope.rotate(vectors(1)[0], 100, LADDER))))


@claim("Zhao, equal tokens", "E over a unit token of its score at lag m is C(m)", "analysis.similarity",
       "every block has 1/D of the mean energy", 4.0)  # fmt: skip
def _() -> float:
    tokens = np.random.default_rng(3).standard_normal((4096, 128))
    tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
    found = np.sum(tokens * rfrope.rotate(tokens, -100.0, LADDER), axis=-1)
    wanted = analysis.similarity(-100.0, LADDER).mean
    return float(abs(np.mean(found) - wanted) / (np.std(found) / 64.0))


@claim("Zhao, arithmetic angles", "(1/D) Σ cos(i x) is a Dirichlet kernel", "arithmetic", "geometric sum")
def _() -> float:
    lags = np.linspace(-30.0, 30.0, 996)
    wanted = (np.sin(6.45 * lags) / (2.0 * np.sin(0.05 * lags)) - 0.5) / 64
    return far(analysis.mean_kernel(lags, rfrope.arithmetic(64, step=0.1)), wanted)


@claim("Zhao, integral", "∫ cos(mθ) dθ/(θ ln b) = [Ci(m) − Ci(m/b)]/ln b", "analysis.log_uniform_kernel",
       "substitution", 1e-9)  # fmt: skip
def _() -> float:
    found = integrate.quad(lambda t: np.cos(30.0 * np.exp(t)) / np.log(1e4), -np.log(1e4), 0.0, limit=400)[0]
    return abs(found - float(analysis.log_uniform_kernel(30.0, 1e4)))


@claim("Zhao, first zero of Ci", "Ci(x₀) = 0 at x₀ = 0.61650548562", "analysis.base_for_context", "root of Ci", 1e-10)
def _() -> float:
    return abs(float(special.sici(0.61650548562)[1]))


@claim("Zhao, base for a context (corrected)", "base ≥ L/x₀ suffices for the integral, not for the sum",
       "analysis.first_negative_lag", "lag 1707 for a promised 6165", 0.0)  # fmt: skip
def _() -> float:
    return abs(float(analysis.first_negative_lag(LADDER, 6165) or 0) - 1707.0)


@claim("Wendler, dot product", "qₘ · kₙ = xₘᵀ W_qᵀ R(n − m) W_k xₙ", "scores", "R(a)ᵀ R(b) = R(b − a)")
def _() -> float:
    q, k = vectors()
    return far(rfrope.scores(q[None], k[None], [5], [9], LADDER)[0, 0], q @ rfrope.rotate(k, 4.0, LADDER))


@claim("Wendler, previous-token head (corrected)", "score Σ cos((Δ + 1) θ)/τ, D/τ at Δ = −1",
       "heads.positional_weights heads.positional_scores", "W_q = R(−1) W_k/τ", 1e-12)  # fmt: skip
def _() -> float:
    w_q, w_k = heads.positional_weights(LADDER, d_model=4, temperature=0.25)
    x = np.array([1.0, 0.0, 0.0, 0.0])
    found = [w_q @ x @ rfrope.rotate(w_k @ x, lag, LADDER) for lag in LAGS]
    wanted = heads.positional_scores(LAGS, LADDER, temperature=0.25, scaled=False)
    return far(found, wanted) + abs(float(wanted[LAGS == -1.0][0]) - 256.0)


@claim("Stratos, (3)", "multipliers β^((l−1)/M), β = 1/base", "geometric", "definition", 1e-15)
def _() -> float:
    return far(rfrope.geometric(8), 0.0001 ** (np.arange(8) / 8))


@claim("Stratos, property 3", "E(t + k) = B_k E(t)", "sinusoidal rotation.shift_matrix", "(8)")
def _() -> float:
    embedded = rfrope.sinusoidal(np.array([3.0, 10.0]), LADDER)
    return far(embedded[1], rotation.shift_matrix(7.0, LADDER) @ embedded[0])


@claim("Stratos, (4) (corrected)", "⟨E(q, t), E(k, t')⟩ depends on t' − t, and on q and k", "scores", "(1) of RF-RoPE")
def _() -> float:
    q, k = vectors()
    found = [rfrope.scores(q[None], k[None], [t], [t - 5], LADDER)[0, 0] for t in (5, 77, 4096)]
    return far(found, found[0])


@claim("Stratos, (6)", "cos ⊙ q + sin ⊙ (−q[M:] ⊕ q[:M])", "rotate", "definition")
def _() -> float:
    q = vectors(1)[0]
    cos, sin = (np.tile(f(9 * LADDER), 2) for f in (np.cos, np.sin))
    return far(rfrope.rotate(q, 9, LADDER), cos * q + sin * np.concatenate([-q[64:], q[:64]]))


@claim(
    "Stratos, (7), (20), (21)", "q(t) = C⁻¹(C(q) e^(iσt))", "rotation.to_complex rotation.from_complex", "polar form"
)
def _() -> float:
    q = vectors(1)[0]
    return far(rotation.from_complex(rotation.to_complex(q) * np.exp(9j * LADDER)), rfrope.rotate(q, 9, LADDER))


@claim("Stratos, (8)", "sin and cos of a sum are a rotation of both", "rotation.shift_matrix", "angle addition")
def _() -> float:
    return far(rotation.shift_matrix(2.0, [0.5]), [[np.cos(1), np.sin(1)], [-np.sin(1), np.cos(1)]])


@claim("Stratos, (13) to (16) (corrected)", "Re ⟨z, z'⟩ = ⟨x, y⟩ for ⟨z, z'⟩ = Σ z z̄'", "rotation.to_complex", "(14)")
def _() -> float:
    x, y = vectors()
    return abs(float(np.sum(rotation.to_complex(x) * rotation.to_complex(y).conj()).real - x @ y))


@claim("Stratos, (19) (corrected)", "Im ⟨z, z'⟩ = Σ (x_{d+j} y_j − x_j y_{d+j})", "rotation.to_complex", "(14)")
def _() -> float:
    x, y = vectors()
    wanted = np.sum(x[64:] * y[:64] - x[:64] * y[64:])
    return abs(float(np.sum(rotation.to_complex(x) * rotation.to_complex(y).conj()).imag - wanted))


@claim("Stratos, (22), (23)", "⟨q(t), k(t')⟩ = Re ⟨z, z'⟩ e^(i(t−t')σ)", "rotation.to_complex scores", "Lemma C.1")
def _() -> float:
    q, k = vectors()
    z = rotation.to_complex(q) * rotation.to_complex(k).conj() * np.exp(1j * (9 - 4) * LADDER)
    return abs(float(np.sum(z).real - rfrope.scores(q[None], k[None], [9], [4], LADDER)[0, 0]))


def table() -> str:
    """Return the table in reStructuredText, measured now."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 18 34 22 16 10", ""]
    rows = [("Source and place", "Statement", "Functions", "Proof", "Error, measured")]
    for one in CLAIMS:
        error = one.error()
        unit = " standard errors" if one.bound == 4.0 else ""
        functions = ", ".join(f"`{name}`" for name in one.functions)
        rows.append((one.source, one.statement, functions, one.proof, f"{error:.1e}{unit}" if error else "0"))
    for row in rows:
        lines += [f"     - {cell}" if i else f"   * - {cell}" for i, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        pathlib.Path(sys.argv[1]).write_text(table(), "utf-8")
    else:
        sys.stdout.write(table())
