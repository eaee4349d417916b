"""The transport as a function of parameters: the values of the kernels, and derivatives against differences."""

import dataclasses
import math

import mpmath as mp
import numpy as np
import problems
import pytest
from campaign import sparse
from conftest import library
from scipy import special

import rfrope
from rfrope import kernels
from rfrope._core import array
from rfrope.designs import learned_kernel, points
from rfrope.kernels.gradients import fix_points, list_movable


def learnable(value):
    return library("torch").module.tensor(value, dtype=library("torch").module.float64, requires_grad=True)


def moved(u, law, **values):
    """Frequencies of points by some parameters that are arrays, the others as they are."""
    law = kernels.parse(law) if isinstance(law, str) else law
    like = next(iter(values.values()))
    every = {name: getattr(law, name) + 0.0 * like for name in list_movable(law) if name not in values} | values
    u = np.asarray(u)
    u = u if u.ndim and u.shape[-1] == law.n_columns else u[..., None]
    return law.restore_shape(fix_points(law, u)(every, array.namespace(like=like)))


NU = [0.05, 0.3, 1.0, 3.7, 30.0, 200.0]
U = np.array([1e-15, 1e-6, 0.02, 0.4, 0.51, 0.9, 0.999, 1.0 - 2.0**-40])


def exact_slope(tail, density, nu, x):
    """Derivative of a quantile by nu where it is x: by the law's distribution function, in 40 digits."""
    return float(-mp.diff(lambda n: tail(n, x), nu) / density(nu, x))


def gamma_tail(nu, x):
    return mp.gammainc(nu, 0, x, regularized=True)


def gamma_density(nu, x):
    return mp.exp((nu - 1) * mp.log(x) - x) / mp.gamma(nu)


def student_tail(nu, w):
    """Upper tail of Student's t with 2 nu degrees of freedom."""
    return -mp.betainc(nu, 0.5, 0, 2 * nu / (2 * nu + w * w), regularized=True) / 2


def student_density(nu, w):
    return mp.power(1 + w * w / (2 * nu), -nu - 0.5) / mp.sqrt(2 * nu) / mp.beta(nu, 0.5)


@pytest.mark.parametrize("nu", NU)
def test_shapes_move_frequencies_by_the_derivative_of_the_distribution_function(nu, torch):
    """Each by mpmath: quantiles from the roots of the tails, slopes from those of the tails at fixed quantiles."""

    def slopes(text, u):
        """Frequencies, and the derivative of each one by nu."""
        value = learnable(nu)
        found = moved(u, text, **{"alpha" if "quadratic" in text else "nu": value}).reshape(len(u), -1)[:, 0]
        grads = [torch.autograd.grad(one, value, retain_graph=True)[0].item() for one in found]
        return found.detach().numpy(), grads

    with mp.workdps(40):
        w, found = slopes("matern", U)
        for u, x, slope in zip(U, w, found, strict=True):
            tail = -student_tail(mp.mpf(nu), mp.mpf(abs(x)))
            assert float(tail) == pytest.approx(min(u, 1.0 - u), rel=1e-11)
            exact = math.copysign(1.0, x) * exact_slope(student_tail, student_density, mp.mpf(nu), mp.mpf(abs(x)))
            assert slope == pytest.approx(exact, rel=1e-9, abs=1e-11)
        pairs = np.stack([U, np.full(len(U), 0.8)], axis=-1)
        z = float(special.ndtri(0.8))
        w, found = slopes("rational_quadratic", pairs)
        for u, x, slope in zip(U, w, found, strict=True):
            g = mp.mpf(nu) * (mp.mpf(x) / mp.mpf(z)) ** 2
            tail = gamma_tail(mp.mpf(nu), g)
            assert float(min(tail, 1 - tail)) == pytest.approx(min(u, 1.0 - u), rel=1e-10)
            exact = z * 0.5 * math.sqrt(nu / float(g)) / nu
            exact *= exact_slope(gamma_tail, gamma_density, mp.mpf(nu), g) - float(g) / nu
            assert slope == pytest.approx(exact, rel=1e-9, abs=1e-12)
        other, of_matern = slopes("matern(ndim=2)", np.stack([U, np.full(len(U), 0.8), np.full(len(U), 0.3)], axis=-1))
        np.testing.assert_allclose(other, z * z / w, rtol=1e-11)  # the same variable, in the denominator
        np.testing.assert_allclose(of_matern, -z * z / w**2 * found, rtol=1e-10)


@pytest.mark.parametrize(("text", "name"), [("matern", "nu"), ("rational_quadratic", "alpha")])
def test_further_derivatives_by_a_shape_are_differences_of_those_before(text, name, torch):
    u = np.linspace(0.03, 0.97, 6 if name == "nu" else 12).reshape(6, -1)

    def derivatives(at):
        value, found = learnable(at), []
        of = (moved(u, text, **{name: value}).reshape(6) * torch.arange(1.0, 7.0)).sum()
        for _ in range(4):
            (of,) = torch.autograd.grad(of, value, create_graph=True)
            found.append(of.item())
        return np.array(found)

    step = 1e-2
    weights = np.array([1.0, -8.0, 8.0, -1.0]) / (12.0 * step)
    found = sum(w * derivatives(2.3 + step * k) for w, k in zip(weights, (-2, -1, 1, 2), strict=True))
    np.testing.assert_allclose(found[:3], derivatives(2.3)[1:], rtol=1e-6)


def student_beside_median(nu, q):
    """Student's quantile at 1/2 + q: sqrt(2 nu) sinh(y), y by a series in q B(nu, 1/2), to its fourth power."""
    v = q * mp.beta(nu, 0.5)
    return mp.sqrt(2 * nu) * (v + (nu / 3 + mp.mpf(1) / 6) * v**3)


BESIDE_MEDIAN = [("matern", "nu", nu, student_beside_median) for nu in NU] + [
    ("matern(nu=3.7)", "scale", 0.3, lambda scale, q: student_beside_median(mp.mpf(3.7), q) / scale),
    ("log_uniform(low=0.01, high=0.9)", "low", 0.01, lambda low, q: low * (mp.mpf(0.9) / low) ** (2 * q)),
    ("log_uniform(low=0.01, high=0.9)", "high", 0.9, lambda high, q: mp.mpf(0.01) * (high / mp.mpf(0.01)) ** (2 * q)),
    ("gaussian", "scale", 0.3, lambda scale, q: mp.sqrt(2) * mp.erfinv(2 * q) / scale),
]


@pytest.mark.parametrize(("text", "name", "value", "quantile"), BESIDE_MEDIAN)
def test_slopes_beside_the_median_keep_their_digits_by_graphs_and_by_complex_steps(text, name, value, quantile, torch):
    q = 2.0 ** -np.arange(24.0, 53.0, 4.0)  # from 6e-8 on: exact, and so is 1/2 + q
    u, step = 0.5 + q, 2.0**-200
    by_graph = torch.full((len(q), 1), value, dtype=torch.float64, requires_grad=True)
    moved(u, text, **{name: by_graph}).sum().backward()
    by_step = moved(u, text, **{name: np.full((len(q), 1), value + 1j * step)}).imag / step
    with mp.workdps(40):
        exact = [float(mp.diff(lambda at, one=one: quantile(at, mp.mpf(one)), mp.mpf(value))) for one in q]
    np.testing.assert_allclose(by_graph.grad[:, 0], exact, rtol=1e-9)
    np.testing.assert_allclose(by_step, exact, rtol=1e-9)


def test_slopes_of_slopes_are_right_too(torch):
    def slope(nu):
        value = learnable(nu)
        found = moved([0.03, 0.8], "matern", nu=value).sum()
        return torch.autograd.grad(found, value, create_graph=True)[0], value

    expected = (slope(1.3 + 1e-4)[0] - slope(1.3 - 1e-4)[0]) / 2e-4
    assert torch.autograd.grad(*slope(1.3))[0].item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_transport_of_a_power_exponential_kernel_goes_on_to_its_end():
    """With exponent 2 it is Gaussian."""
    law = kernels.parse("power_exponential(exponent=2, scale=3)")
    u = points(law, 8, rng=0)
    found = moved(u, law, exponent=np.asarray(2.0))
    np.testing.assert_allclose(found, law.transport(u), rtol=1e-12)


# -- parameters drawn wide ---------------------------------------------------------------------------------------------

WALK = [
    kernels.parse(f"{record.name}(ndim={ndim})")
    for record in kernels.records()
    for ndim in ((1, 2, 3) if record.dimensions == "any k" else (1,))
    if record.name not in ("constant", "spectral_mixture")
]
WALK += [
    kernels.parse(f"spectral_mixture(weights=(0.3, 0.3, 0.4), means=(0, 0, 0), scales=(1, 1, 1), ndim={ndim})")
    for ndim in (1, 2)
]
DRAWS = 8
RATIOS = (1e-3, 0.01, 0.3, math.log(2.0), 1.0 - 1e-5, 1.0 + 1e-5, 2.3, 20.0)  # logarithms of high / low


def drawn(law):
    """Values ``(DRAWS, ...)`` of what is learned of a family, lengths in the plane one for each axis."""
    rng, values = np.random.default_rng(3), {}
    for field in dataclasses.fields(law):
        search = field.metadata.get("search")
        if search:
            is_shape = search.kind == "shape"
            least, most = (max(search.minimum, 0.05), min(search.maximum, 50.0)) if is_shape else (1e-3, 1e3)
            each_axis = (2,) if law.ndim == 2 and law.name in problems.MANY_AXES and not is_shape else ()
            values[field.name] = np.exp(rng.uniform(math.log(least), math.log(most), (DRAWS, *each_axis)))
    if law.name == "log_uniform":
        values["low"] = values["high"] * np.exp(-np.array(RATIOS))
    if law.name == "spectral_mixture":
        values = {
            "means": rng.uniform(-2.0, 2.0, (DRAWS, 3, 1)),
            "scales": np.exp(rng.uniform(-2.0, 2.0, (DRAWS, 3, 1))),
        }
    return {name: value for name, value in values.items() if name in list_movable(law)}


def cube(law):
    u = points(law, 4, rng=0)
    u.reshape(4, -1)[0, 0] = 1e-300
    return u


@pytest.mark.parametrize(
    "law", sparse(WALK, lambda law: law.ndim == 1 or (law.ndim == 2 and law.name != "matern")), ids=repr
)
def test_gradients_are_those_of_differences_at_parameters_drawn_wide(law, torch):
    change = (lambda value: value) if law.name == "spectral_mixture" else np.log
    back = (lambda tensor: tensor) if law.name == "spectral_mixture" else torch.exp
    values, u = drawn(law), cube(law)
    for j in range(DRAWS):
        tensors = [learnable(change(value[j])) for value in values.values()]
        assert torch.autograd.gradcheck(
            lambda *tensors: moved(u, law, **dict(zip(values, map(back, tensors), strict=True))),
            tensors,
            atol=1e-6,
            rtol=1e-5,
        )


@pytest.mark.parametrize(
    "law", sparse(WALK, lambda law: law.ndim < 3 and law.name not in ("matern", "rational_quadratic")), ids=repr
)
def test_jax_compiles_and_maps_over_parameters_drawn_wide(law, torch, jax):
    """Values are those of kernels with these numbers, and gradients those of torch."""
    values, u = drawn(law), cube(law)

    def summed(values):
        found = moved(u, law, **values)
        return found.sum(), found

    with jax.enable_x64(True):
        slopes, found = jax.jit(jax.vmap(jax.grad(summed, has_aux=True)))(values)
    for j in range(DRAWS):
        plain = {
            name: value[j].reshape(value[j].shape if value[j].ndim < 2 else -1).tolist()
            for name, value in values.items()
        }
        np.testing.assert_allclose(found[j], dataclasses.replace(law, **plain).transport(u), rtol=1e-10, atol=1e-12)
        tensors = {name: torch.tensor(value[j], requires_grad=True) for name, value in values.items()}
        moved(u, law, **tensors).sum().backward()
        for name, tensor in tensors.items():
            np.testing.assert_allclose(slopes[name][j], tensor.grad.numpy(), rtol=1e-7, atol=1e-9)


# -- tails -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["matern(nu={})", "matern(nu={}, ndim=2)", "power_exponential(exponent={})"])
@pytest.mark.parametrize("shape", [0.02, 0.05, 0.3, 1.9])
def test_the_transport_is_that_of_the_kernel_to_the_ends_of_the_cube(text, shape, torch):
    """Also its cut, where derivatives are 0."""
    law = kernels.parse(text.format(shape))
    u = np.array([[1e-300, 0.7, 0.8], [2.0**-53, 0.7, 0.2], [0.6, 0.7, 0.8], [1.0 - 2.0**-50, 0.7, 0.8]])
    u = u[:, : law.n_columns] if law.n_columns > 1 else u[:, 0]
    value = learnable(shape)
    found = moved(u, law, **{"exponent" if "power" in text else "nu": value})
    np.testing.assert_allclose(found.detach().numpy(), law.transport(u), rtol=1e-10)
    for one in found.reshape(-1):
        (slope,) = torch.autograd.grad(one, value, retain_graph=True)
        assert math.isfinite(float(slope))
        assert (float(slope) == 0.0) == (abs(float(one.detach())) == 2.0**500)


def test_derivatives_by_the_exponent_of_a_nearly_normal_law(torch, jax):
    """They grow as the logarithm of ``1 / (2 - exponent)``."""
    u, found = np.array([[0.5, 0.4, 0.8]]), []
    for exponent in map(learnable, (1.999, 2.0 - 1e-7, 2.0 - 1e-12)):
        found += [slope.item() for slope in torch.autograd.grad(moved(u, "stable", exponent=exponent)[0], exponent)]
    np.testing.assert_allclose(found, [1.6294, 4.3705, 7.7962], atol=1e-4)
    with jax.enable_x64(True):
        value = jax.numpy.asarray(2.0)
        assert jax.grad(lambda value: moved(u, "stable", exponent=value)[0])(value) == math.inf


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exponential(scale=3)", "index 1, so derivatives have no mean.* do not converge"),
        ("matern(nu=0.4)", "index 0.8, .* no mean"),
        ("matern(nu=1)", "index 2, .* no variance.* converge slowly"),
        ("power_exponential(exponent=1.3)", "index 1.3, .* no variance"),
    ],
)
def test_gradients_of_heavy_tails_are_warned_of(text, said):
    with pytest.warns(UserWarning, match=said):
        learned_kernel(rfrope.design(text, head_dim=8, context=64, design="stratified", rng=0))


@pytest.mark.parametrize("text", ["matern(nu=1.1)", "rational_quadratic(alpha=0.1)"])
def test_gradients_of_lighter_tails_are_not(text):
    learned_kernel(rfrope.design(text, head_dim=8, context=64, design="stratified", rng=0))


def test_exponents_that_are_learned_are_mapped_over(torch):
    u, at = np.random.default_rng(0).random((5, 3)), torch.tensor([1.5, 1.9], dtype=torch.float64)
    found = torch.func.vmap(lambda one: moved(u, "power_exponential", exponent=one))(at)
    for row, exponent in zip(found, at, strict=True):
        torch.testing.assert_close(row, moved(u, "power_exponential", exponent=exponent))
