"""Phi and the transport as functions of parameters: the values of the kernels, and derivatives against differences."""

import contextlib
import dataclasses
import math

import mpmath as mp
import numpy as np
import problems
import pytest
from campaign import sparse
from conftest import library
from scipy import special

from rfrope import kernels
from rfrope.designs import points
from rfrope.kernels import evaluate_phi, transport_points

heavy_tails = pytest.mark.filterwarnings("ignore:frequencies of")


@pytest.fixture
def torch():
    return library("torch").module


def learnable(value):
    return library("torch").module.tensor(value, dtype=library("torch").module.float64, requires_grad=True)


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


@heavy_tails
@pytest.mark.parametrize("nu", NU)
def test_shapes_move_frequencies_by_the_derivative_of_the_distribution_function(nu, torch):
    """Each by mpmath: quantiles from the roots of the tails, slopes from those of the tails at fixed quantiles."""

    def slopes(text, u):
        """Frequencies, and the derivative of each one by nu."""
        value = learnable(nu)
        found = transport_points(u, text, **{"alpha" if "quadratic" in text else "nu": value}).reshape(len(u), -1)[:, 0]
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


def test_slopes_of_slopes_are_right_too(torch):
    def slope(nu):
        moved = learnable(nu)
        found = transport_points(torch.tensor([0.03, 0.8]), "matern", nu=moved).sum()
        return torch.autograd.grad(found, moved, create_graph=True)[0], moved

    expected = (slope(1.3 + 1e-4)[0] - slope(1.3 - 1e-4)[0]) / 2e-4
    assert torch.autograd.grad(*slope(1.3))[0].item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_transport_of_a_power_exponential_kernel_goes_on_to_its_end():
    """With exponent 2 it is Gaussian."""
    law = kernels.parse("power_exponential(exponent=2, scale=3)")
    u = points(law, 8, rng=0)
    found = transport_points(u, law, exponent=np.asarray(2.0))
    np.testing.assert_allclose(found, law.transport(u), rtol=1e-12)


@pytest.mark.parametrize("nu", [0.05, 0.3, 0.5, 1.0, 2.5, 12.0, 31.0, 100.0, 1000.0, 1e5])
def test_matern_by_its_integral_is_the_kernel_and_with_a_large_nu_comes_near_a_gaussian_one(nu, torch):
    """To second order in 1 / nu; so does its derivative by nu."""
    t, value = np.array([0.0, 1e-12, 1e-9, 1e-4, 0.1, 0.5, 1.0, 2.0, 3.0, 9.0, 1e6]), learnable(nu)
    found = evaluate_phi(t, "matern", nu=value)
    np.testing.assert_allclose(found.detach().numpy(), kernels.parse(f"matern(nu={nu})")(t), atol=2e-13)
    if nu >= 100.0:
        gaussian = np.exp(-0.5 * t**2)
        first = gaussian * (0.125 * t**4 - 0.5 * t**2)
        within = 0.5 / nu**2 + 1e-15
        np.testing.assert_allclose(found.detach().numpy()[:8], (gaussian + first / nu)[:8], rtol=0.0, atol=within)
        (slope,) = torch.autograd.grad(found[6], value)
        assert float(slope) == pytest.approx(-first[6] / nu**2, rel=2.0 / nu)


@pytest.mark.parametrize("nu", [0.5, 31.0])
def test_derivatives_of_matern_in_single_precision_are_finite_and_right(nu):
    library("jax")
    import jax

    for lag in (0.0, 1.0, 100.0, 1e9):
        expected = learnable(nu)
        evaluate_phi(lag, "matern", nu=expected).backward()
        with jax.enable_x64(False):
            at, value = jax.numpy.float32(lag), jax.numpy.float32(nu)
            found = jax.grad(lambda n, at=at: evaluate_phi(at, "matern", nu=n))(value)
        assert float(found) == pytest.approx(float(expected.grad), rel=1e-4, abs=1e-6)


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
    """Values ``(DRAWS, ...)`` of every parameter of a family, lengths in the plane one for each axis; and lags."""
    rng, values, unit = np.random.default_rng(3), {}, np.ones(DRAWS)
    for field in dataclasses.fields(law):
        search = field.metadata.get("search")
        if search:
            is_shape = search.kind == "shape"
            least, most = (max(search.minimum, 0.05), min(search.maximum, 50.0)) if is_shape else (1e-3, 1e3)
            each_axis = (2,) if law.ndim == 2 and law.name in problems.MANY_AXES and not is_shape else ()
            values[field.name] = np.exp(rng.uniform(math.log(least), math.log(most), (DRAWS, *each_axis)))
            unit = {"length": values[field.name], "frequency": 1.0 / values[field.name]}.get(search.kind, unit)
    if law.name == "log_uniform":
        values["low"] = values["high"] * np.exp(-np.array(RATIOS))
    if law.name == "spectral_mixture":
        values = {"weights": rng.dirichlet(np.ones(3), DRAWS), "means": rng.uniform(-2.0, 2.0, (DRAWS, 3))}
        values["scales"] = np.exp(rng.uniform(-2.0, 2.0, (DRAWS, 3)))
    sizes = np.exp(rng.uniform(math.log(0.05), math.log(10.0), (DRAWS, 3, 1)))
    lags = np.reshape(unit, (DRAWS, 1, -1)) * sizes * np.array([0.6, 0.8, 0.3])[: law.ndim]
    return values, law.restore_shape(lags)


def both(law):
    """Phi and the transport as functions of values and lags, with the parameters that they can be learned by."""
    u = points(law, 4, rng=0)
    u.reshape(4, -1)[0, 0] = 1e-300
    fixed = {"periodic": {"scale"}, "spectral_mixture": {"weights"}}.get(law.name, set())
    yield lambda values, lags: evaluate_phi(lags, law, **values), set(), lambda one, lags: one.phi(lags)
    yield lambda values, lags: transport_points(u, law, **values), fixed, lambda one, lags: one.transport(u)


@heavy_tails
@pytest.mark.parametrize(
    "law", sparse(WALK, lambda law: law.ndim == 1 or (law.ndim == 2 and law.name != "matern")), ids=repr
)
def test_gradients_are_those_of_differences_at_parameters_drawn_wide(law, torch):
    change = (lambda value: value) if law.name == "spectral_mixture" else np.log
    back = (lambda tensor: tensor) if law.name == "spectral_mixture" else torch.exp
    values, lags = drawn(law)
    for function, fixed, _ in both(law):
        names = [name for name in values if name not in fixed]

        def changed(at, *tensors, function=function, names=names):
            return function(dict(zip(names, map(back, tensors), strict=True)), at)

        for j in range(DRAWS):
            tensors = [learnable(change(values[name][j])) for name in names]
            assert torch.autograd.gradcheck(changed, (torch.tensor(lags[j]), *tensors), atol=1e-6, rtol=1e-5)


@heavy_tails
@pytest.mark.parametrize(
    "law", sparse(WALK, lambda law: law.ndim < 3 and law.name not in ("matern", "rational_quadratic")), ids=repr
)
def test_jax_compiles_and_maps_over_parameters_drawn_wide(law, torch):
    """Values are those of kernels with these numbers, and gradients those of torch."""
    library("jax")
    import jax

    drawn_values, lags = drawn(law)
    for function, fixed, exact in both(law):
        values = {name: value for name, value in drawn_values.items() if name not in fixed}

        def summed(values, at, function=function):
            found = function(values, at)
            return found.sum(), found

        with jax.enable_x64(True):
            slopes, found = jax.jit(jax.vmap(jax.grad(summed, has_aux=True)))(values, lags)
        for j in range(DRAWS):
            plain = {name: value[j].tolist() for name, value in drawn_values.items()}
            one = dataclasses.replace(law, **(plain if not fixed else {name: plain[name] for name in values}))
            np.testing.assert_allclose(found[j], exact(one, lags[j]), rtol=1e-10, atol=1e-12)
            tensors = {name: torch.tensor(value[j], requires_grad=True) for name, value in values.items()}
            function(tensors, torch.tensor(lags[j])).sum().backward()
            for name, tensor in tensors.items():
                np.testing.assert_allclose(slopes[name][j], tensor.grad.numpy(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("low", "high", "lag"),
    [(1, 2, 3), (1, 1.01, 50), (1, 1.01, 500), (1, 2.71, 3), (1, 2.72, 3), (1e-4, 1, 100), (1, 1 + 1e-9, 1e3)],
)
def test_derivatives_of_log_uniform_by_both_ends(low, high, lag, torch):
    """They are ``(Phi - cos(low x)) / (low L)`` and ``(cos(high x) - Phi) / (high L)``, with L = ln(high / low)."""
    ends = [learnable(float(end)) for end in (low, high)]
    found = torch.autograd.grad(evaluate_phi(torch.tensor(float(lag)), "log_uniform", low=ends[0], high=ends[1]), ends)
    with mp.workdps(60):
        low, high = mp.mpf(low), mp.mpf(high)
        ratio = mp.log(high / low)
        phi = (mp.ci(high * lag) - mp.ci(low * lag)) / ratio
        exact = [(phi - mp.cos(low * lag)) / (low * ratio), (mp.cos(high * lag) - phi) / (high * ratio)]
    np.testing.assert_allclose([float(one) for one in found], [float(one) for one in exact], rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "name", "lag"),
    [
        ("shell(radius=2.3)", "radius", 1e9 + 0.3),
        ("shell(radius=2.3)", "radius", 1e12 + 0.3),
        ("periodic(period=2.3)", "period", 1e12 + 0.3),
        ("spectral_mixture(weights=(0.5, 0.5), means=(2.3, 0.1), scales=(1e-13, 1e-12))", "means", 1e12 + 0.3),
        ("power_exponential(exponent=0.05)", "scale", 1e-200),
        ("power_exponential(exponent=0.05)", "exponent", 1e-200),
        ("rational_quadratic(alpha=0.02)", "alpha", 1e150),
    ],
)
def test_phi_is_that_of_the_kernel_at_large_phases_and_tiny_lags(xp, text, name, lag):
    law = kernels.parse(text)
    found = evaluate_phi(xp([lag]), text, **{name: xp(getattr(law, name))})
    np.testing.assert_allclose(xp.host(found), law([lag]), rtol=0.0, atol=2e-15)


def test_derivatives_of_a_wave_have_its_exact_phase(torch):
    lag, radius = 1e12 + 0.3, learnable(2.3)
    evaluate_phi(torch.tensor(lag, dtype=torch.float64), "shell", radius=radius).backward()
    with mp.workdps(40):
        assert float(radius.grad) == pytest.approx(float(-lag * mp.sin(mp.mpf(2.3) * mp.mpf(lag))), rel=1e-14)


# -- tails -------------------------------------------------------------------------------------------------------------


@heavy_tails
@pytest.mark.parametrize("text", ["matern(nu={})", "matern(nu={}, ndim=2)", "power_exponential(exponent={})"])
@pytest.mark.parametrize("shape", [0.02, 0.05, 0.3, 1.9])
def test_the_transport_is_that_of_the_kernel_to_the_ends_of_the_cube(text, shape, torch):
    """Also its cut, where derivatives are 0."""
    law = kernels.parse(text.format(shape))
    u = np.array([[1e-300, 0.7, 0.8], [2.0**-53, 0.7, 0.2], [0.6, 0.7, 0.8], [1.0 - 2.0**-50, 0.7, 0.8]])
    u = u[:, : law.n_columns] if law.n_columns > 1 else u[:, 0]
    value = learnable(shape)
    found = transport_points(u, law, **{"exponent" if "power" in text else "nu": value})
    np.testing.assert_allclose(found.detach().numpy(), law.transport(u), rtol=1e-10)
    for one in found.reshape(-1):
        (slope,) = torch.autograd.grad(one, value, retain_graph=True)
        assert math.isfinite(float(slope))
        assert (float(slope) == 0.0) == (abs(float(one.detach())) == 2.0**500)


def test_derivatives_by_the_exponent_of_a_nearly_normal_law(torch):
    """They grow as the logarithm of ``1 / (2 - exponent)``."""
    library("jax")
    import jax

    u, found = np.array([[0.5, 0.4, 0.8]]), []
    for exponent in map(learnable, (1.999, 2.0 - 1e-7, 2.0 - 1e-12)):
        with pytest.warns(UserWarning, match="no variance"):
            omega = transport_points(u, "stable", exponent=exponent)[0]
        found += [slope.item() for slope in torch.autograd.grad(omega, exponent)]
    np.testing.assert_allclose(found, [1.6294, 4.3705, 7.7962], atol=1e-4)
    with jax.enable_x64(True):
        assert jax.grad(lambda value: transport_points(u, "stable", exponent=value)[0])(2.0) == math.inf


@pytest.mark.parametrize(
    ("text", "name", "value", "said"),
    [
        ("exponential", "scale", 3.0, "index 1, so derivatives have no mean.* do not converge"),
        ("matern", "nu", 0.4, "index 0.8, .* no mean"),
        ("matern(nu=1)", "scale", 3.0, "index 2, .* no variance.* converge slowly"),
        ("power_exponential", "exponent", 1.3, "index 1.3, .* no variance"),
        ("matern", "nu", 1.1, None),
        ("power_exponential(exponent=2)", "scale", 3.0, None),
        ("rational_quadratic", "alpha", 0.1, None),
    ],
)
def test_gradients_of_heavy_tails_are_warned_of(text, name, value, said):
    u = points(text, 4, rng=0)
    transport_points(u, text, **{name: np.asarray(value)})
    with pytest.warns(UserWarning, match=said) if said else contextlib.nullcontext():
        transport_points(u, text, **{name: learnable(value)})


def test_without_values_both_are_the_kernels_own():
    law = kernels.parse("matern(nu=1.3, scale=3)")
    u = points(law, 4, rng=0)
    assert transport_points(u, law).tolist() == law.transport(u).tolist()
    assert evaluate_phi([0.0, 2.0], law).tolist() == law([0.0, 2.0]).tolist()


def test_exponents_that_are_learned_are_mapped_over(torch):
    u, at = np.random.default_rng(0).random((5, 3)), torch.tensor([1.5, 1.9], dtype=torch.float64)
    found = torch.func.vmap(lambda one: transport_points(u, "power_exponential", exponent=one))(at)
    for row, exponent in zip(found, at, strict=True):
        torch.testing.assert_close(row, transport_points(u, "power_exponential", exponent=exponent))
