"""Phi and the transport as functions of parameters: the values of the kernels, and derivatives against differences."""

import contextlib
import dataclasses
import math

import mpmath as mp
import numpy as np
import pytest
from campaign import sparse
from conftest import library
from scipy import special

import rfrope
from rfrope import kernels
from rfrope.designs import points
from rfrope.kernels import evaluate_phi, transport_points

CASES = {  # text, parameters that Phi may be learned by
    "gaussian(scale=3)": ("scale",),
    "gaussian(scale=(3, 5), ndim=2)": ("scale",),
    "cauchy(scale=3, ndim=2)": ("scale",),
    "exponential(scale=3)": ("scale",),
    "matern(nu=1.3, scale=3)": ("nu", "scale"),
    "matern(nu=0.3, scale=3, ndim=2)": ("nu", "scale"),
    "rational_quadratic(alpha=0.7, scale=3)": ("alpha", "scale"),
    "power_exponential(exponent=1.3, scale=3, ndim=2)": ("exponent", "scale"),
    "sinc(bandwidth=0.4, ndim=2)": ("bandwidth",),
    "ball(bandwidth=0.4, ndim=3)": ("bandwidth",),
    "shell(radius=0.4, ndim=2)": ("radius",),
    "log_uniform(low=0.05, high=0.5)": ("low", "high"),
    "periodic(period=7, scale=0.7)": ("period", "scale"),
    "spectral_mixture(weights=(0.75, 0.25), means=(0.1, 0.2), scales=(0.4, 0.2))": ("weights", "means", "scales"),
}
FIXED = {"weights"}
PAIRS = [(text, name) for text, names in CASES.items() for name in names]


def lags_of(law):
    return np.random.default_rng(0).uniform(0.5, 4.0, (5, law.ndim) if law.ndim > 1 else 5)


def with_value(law, name, value):
    return dataclasses.replace(law, **{name: tuple(value) if np.ndim(value) else float(value)})


def difference(function, value):
    """Derivative of an array's sum by each number of a parameter, by differences of fourth order."""
    value = np.asarray(value, dtype=np.float64)
    step = 1e-3 * float(np.max(np.abs(value)))
    found = np.zeros(value.size)
    for place in range(value.size):
        unit = step * (np.arange(value.size) == place).reshape(value.shape)
        found[place] = (
            8.0 * np.sum(function(value + unit) - function(value - unit))
            - np.sum(function(value + 2 * unit) - function(value - 2 * unit))
        ) / (12.0 * step)
    return found.reshape(value.shape)


@pytest.mark.parametrize(("text", "name"), PAIRS)
def test_phi_is_that_of_the_kernel_and_its_gradient_that_of_differences(text, name):
    torch = pytest.importorskip("torch")
    law = kernels.parse(text)
    lags, value = lags_of(law), np.asarray(getattr(law, name))
    tensor = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    found = evaluate_phi(torch.tensor(lags), law, **{name: tensor})
    np.testing.assert_allclose(found.detach().numpy(), law(lags), atol=2e-13)
    found.sum().backward()
    if name == "weights":  # which must sum to 1 in a kernel
        expected = [
            np.sum(kernels.parse(f"spectral_mixture(weights=(1,), means=({m},), scales=({s},))")(lags))
            for m, s in ((0.1, 0.4), (0.2, 0.2))
        ]
    else:
        expected = difference(lambda v: with_value(law, name, v)(lags), value)
    np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.filterwarnings("ignore:frequencies of")
@pytest.mark.parametrize(("text", "name"), [pair for pair in PAIRS if pair[1] not in FIXED])
def test_the_transport_is_that_of_the_kernel_and_its_gradient_that_of_differences(text, name):
    torch = pytest.importorskip("torch")
    law = kernels.parse(text)
    if law.name == "periodic" and name == "scale":
        return
    u, value = points(law, 8, rng=0), np.asarray(getattr(law, name))
    tensor = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    found = transport_points(u, law, **{name: tensor})
    np.testing.assert_allclose(found.detach().numpy(), law.transport(u), rtol=1e-11, atol=1e-14)
    weights = np.random.default_rng(1).normal(size=found.shape)
    (found * torch.tensor(weights)).sum().backward()
    expected = difference(lambda v: weights * with_value(law, name, v).transport(u), value)
    np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=1e-6, atol=1e-8)


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


@pytest.mark.filterwarnings("ignore:frequencies of")
@pytest.mark.parametrize("nu", NU)
def test_shapes_move_frequencies_by_the_derivative_of_the_distribution_function(nu):
    """Each by mpmath: quantiles from the roots of the tails, slopes from those of the tails at fixed quantiles."""
    torch = pytest.importorskip("torch")

    def slopes(text, u, **fixed):
        """Frequencies, and the derivative of each one by nu."""
        value = torch.full((), nu, dtype=torch.float64, requires_grad=True)
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


def test_slopes_of_slopes_are_right_too():
    torch = pytest.importorskip("torch")
    u, nu = torch.tensor([0.03, 0.8]), torch.tensor(1.3, dtype=torch.float64)

    def slope(value):
        moved = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(transport_points(u, "matern", nu=moved).sum(), moved, create_graph=True)[0], moved

    first, moved = slope(float(nu))
    second = torch.autograd.grad(first, moved)[0]
    expected = (slope(float(nu) + 1e-4)[0] - slope(float(nu) - 1e-4)[0]) / 2e-4
    assert float(second) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_the_transport_of_a_power_exponential_kernel_goes_on_to_its_end():
    """With exponent 2 it is Gaussian."""
    law = kernels.parse("power_exponential(exponent=2, scale=3)")
    u = points(law, 8, rng=0)
    found = transport_points(u, law, exponent=np.asarray(2.0))
    np.testing.assert_allclose(found, law.transport(u), rtol=1e-12)


@pytest.mark.parametrize("nu", [0.05, 0.3, 0.5, 1.0, 2.5, 12.0, 31.0])
def test_matern_by_its_integral_is_matern_by_bessels_function(nu):
    t = np.array([0.0, 1e-12, 1e-9, 1e-4, 0.1, 1.0, 3.0, 9.0])
    s = math.sqrt(2.0 * nu) * t[4:]
    expected = 2.0 ** (1.0 - nu) / special.gamma(nu) * s**nu * special.kv(nu, s)
    found = evaluate_phi(t, "matern", nu=np.asarray(nu))
    np.testing.assert_allclose(found[4:], expected, atol=1e-12)
    np.testing.assert_allclose(found, kernels.parse(f"matern(nu={nu})")(t), atol=2e-13)


@pytest.mark.parametrize("nu", [100.0, 1000.0, 1e5])
def test_matern_with_a_large_nu_comes_near_a_gaussian_kernel(nu):
    """To second order in 1 / nu; so is its derivative by nu."""
    torch = pytest.importorskip("torch")
    t = np.array([0.0, 1e-6, 0.5, 1.0, 2.0, 1e6])
    value = torch.tensor(nu, dtype=torch.float64, requires_grad=True)
    found = evaluate_phi(t, "matern", nu=value)
    with np.errstate(over="ignore"):
        expected = np.exp(-0.5 * t**2)
    first = expected * (0.125 * t**4 - 0.5 * t**2)
    np.testing.assert_allclose(found.detach().numpy(), expected + first / nu, rtol=0.0, atol=0.5 / nu**2 + 1e-15)
    np.testing.assert_allclose(found.detach().numpy(), kernels.parse(f"matern(nu={nu})")(t), atol=2e-13)
    (slope,) = torch.autograd.grad(found[3], value)
    assert float(slope) == pytest.approx(-first[3] / nu**2, rel=2.0 / nu)


@pytest.mark.parametrize("nu", [0.5, 31.0])
def test_derivatives_of_matern_in_single_precision_are_finite_and_right(nu):
    jax, matern = pytest.importorskip("jax"), kernels.parse("matern")
    with jax.enable_x64(False):
        for lag in (0.0, 1.0, 100.0, 1e9):
            found = jax.grad(lambda n, at=lag: evaluate_phi(jax.numpy.float32(at), "matern", nu=n))(
                jax.numpy.float32(nu)
            )
            with jax.enable_x64(True):
                expected = difference(lambda v, at=lag: with_value(matern, "nu", v)(np.array([at])), nu)
            assert float(found) == pytest.approx(float(expected), rel=1e-4, abs=1e-6)


def test_the_derivative_of_a_mean_over_the_law_is_that_of_phi():
    """The path of each frequency: d/dscale of the mean cosine of many points is near dPhi/dscale."""
    torch = pytest.importorskip("torch")
    u, lag = points("gaussian", 4096, design="sobol", rng=0), 20.0
    scale = torch.tensor(32.0, dtype=torch.float64, requires_grad=True)
    torch.cos(lag * transport_points(u, "gaussian", scale=scale)).mean().backward()
    assert float(scale.grad) == pytest.approx(lag**2 / 32.0**3 * math.exp(-0.5 * (lag / 32.0) ** 2), rel=1e-3)


# -- parameters drawn wide ---------------------------------------------------------------------------------------------

WALK = [
    kernels.parse(f"{record.name}(ndim={ndim})")
    for record in kernels.records()
    for ndim in ((1, 2) if record.dimensions == "any k" else (1,))
    if record.name not in ("constant", "spectral_mixture")
]
WALK += [
    kernels.parse(f"spectral_mixture(weights=(0.3, 0.3, 0.4), means=(0, 0, 0), scales=(1, 1, 1), ndim={ndim})")
    for ndim in (1, 2)
]
DRAWS = 8
RATIOS = (1e-3, 0.01, 0.3, math.log(2.0), 1.0 - 1e-5, 1.0 + 1e-5, 2.3, 20.0)  # logarithms of high / low


def drawn(law):
    """Values ``(DRAWS, ...)`` of every parameter of a family, and lags that it sees."""
    rng, values, unit = np.random.default_rng(3), {}, np.ones(DRAWS)
    for field in dataclasses.fields(law):
        search = field.metadata.get("search")
        if search:
            least, most = (max(search.least, 0.05), min(search.most, 50.0)) if search.kind == "shape" else (1e-3, 1e3)
            values[field.name] = np.exp(rng.uniform(math.log(least), math.log(most), DRAWS))
            unit = {"length": values[field.name], "frequency": 1.0 / values[field.name]}.get(search.kind, unit)
    if law.name == "log_uniform":
        values["low"] = values["high"] * np.exp(-np.array(RATIOS))
    if law.name == "spectral_mixture":
        values = {"weights": rng.dirichlet(np.ones(3), DRAWS), "means": rng.uniform(-2.0, 2.0, (DRAWS, 3))}
        values["scales"] = np.exp(rng.uniform(-2.0, 2.0, (DRAWS, 3)))
    lags = unit[:, None] * np.exp(rng.uniform(math.log(0.05), math.log(10.0), (DRAWS, 3)))
    return values, lags if law.ndim == 1 else lags[..., None] * np.array([0.6, 0.8])


def both(law):
    """Phi and the transport as functions of values and lags, with the parameters that they can be learned by."""
    u = points(law, 4, rng=0)
    u.reshape(4, -1)[0, 0] = 1e-300
    fixed = {"periodic": {"scale"}, "spectral_mixture": {"weights"}}.get(law.name, set())
    yield lambda values, lags: evaluate_phi(lags, law, **values), set(), lambda one, lags: one.phi(lags)
    yield lambda values, lags: transport_points(u, law, **values), fixed, lambda one, lags: one.transport(u)


@pytest.mark.filterwarnings("ignore:frequencies of")
@pytest.mark.parametrize("law", WALK, ids=repr)
def test_gradients_are_those_of_differences_at_parameters_drawn_wide(law):
    torch = pytest.importorskip("torch")
    is_mixture = law.name == "spectral_mixture"
    drawn_values, lags = drawn(law)
    for function, fixed, _ in both(law):
        names = [name for name in drawn_values if name not in fixed]

        def of_logs(at, *logs, function=function, names=names):
            values = [one if is_mixture else torch.exp(one) for one in logs]
            return function(dict(zip(names, values, strict=True)), at)

        for j in range(DRAWS):
            values = [torch.tensor(drawn_values[name][j]) for name in names]
            logs = [(value if is_mixture else torch.log(value)).requires_grad_() for value in values]
            assert torch.autograd.gradcheck(of_logs, (torch.tensor(lags[j]), *logs), atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:frequencies of")
@pytest.mark.parametrize("law", sparse(WALK, lambda law: law.name not in ("matern", "rational_quadratic")), ids=repr)
def test_jax_compiles_and_maps_over_parameters_drawn_wide(law):
    """Values are those of kernels with these numbers, and gradients those of torch."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
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
def test_derivatives_of_log_uniform_by_both_ends(low, high, lag):
    """They are ``(Phi - cos(low x)) / (low L)`` and ``(cos(high x) - Phi) / (high L)``, with L = ln(high / low)."""
    torch = pytest.importorskip("torch")
    ends = [torch.tensor(float(end), dtype=torch.float64, requires_grad=True) for end in (low, high)]
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


def test_derivatives_of_a_wave_have_its_exact_phase():
    torch = pytest.importorskip("torch")
    lag, radius = 1e12 + 0.3, torch.tensor(2.3, dtype=torch.float64, requires_grad=True)
    evaluate_phi(torch.tensor(lag, dtype=torch.float64), "shell", radius=radius).backward()
    with mp.workdps(40):
        assert float(radius.grad) == pytest.approx(float(-lag * mp.sin(mp.mpf(2.3) * mp.mpf(lag))), rel=1e-14)


# -- tails -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:frequencies of")
@pytest.mark.parametrize("text", ["matern(nu={})", "matern(nu={}, ndim=2)", "power_exponential(exponent={})"])
@pytest.mark.parametrize("shape", [0.02, 0.05, 0.3, 1.9])
def test_the_transport_is_that_of_the_kernel_to_the_ends_of_the_cube(text, shape):
    """Also its cut, where derivatives are 0."""
    torch = pytest.importorskip("torch")
    law = kernels.parse(text.format(shape))
    u = np.array([[1e-300, 0.7, 0.8], [2.0**-53, 0.7, 0.2], [0.6, 0.7, 0.8], [1.0 - 2.0**-50, 0.7, 0.8]])
    u = u[:, : law.n_columns] if law.n_columns > 1 else u[:, 0]
    value = torch.tensor(shape, dtype=torch.float64, requires_grad=True)
    found = transport_points(u, law, **{"exponent" if "power" in text else "nu": value})
    np.testing.assert_allclose(found.detach().numpy(), law.transport(u), rtol=1e-10)
    for one in found.reshape(-1):
        (slope,) = torch.autograd.grad(one, value, retain_graph=True)
        assert math.isfinite(float(slope))
        assert (float(slope) == 0.0) == (abs(float(one.detach())) == 2.0**500)


def test_the_exponent_of_a_normal_law_is_not_learned():
    """The derivative grows as the logarithm of ``1 / (2 - exponent)``."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    u, found = np.array([[0.5, 0.4, 0.8]]), []
    for exponent in (1.999, 2.0 - 1e-7, 2.0 - 1e-12):
        value = torch.tensor(exponent, dtype=torch.float64, requires_grad=True)
        with pytest.warns(UserWarning, match="without variance"):
            omega = transport_points(u, "stable", exponent=value)[0]
        found += [slope.item() for slope in torch.autograd.grad(omega, value)]
    np.testing.assert_allclose(found, [1.6294, 4.3705, 7.7962], atol=1e-4)
    with pytest.raises(ValueError, match=r"exponent is 2\.0, where its derivatives are infinite"):
        transport_points(u, "stable", exponent=torch.tensor(2.0, requires_grad=True))
    with jax.enable_x64(True):
        assert jax.grad(lambda value: transport_points(u, "stable", exponent=value)[0])(2.0) == math.inf


@pytest.mark.parametrize(
    ("text", "name", "value", "said"),
    [
        ("exponential", "scale", 3.0, "index 1, so derivatives without mean.* do not converge"),
        ("matern", "nu", 0.4, "index 0.8, .* without mean"),
        ("matern(nu=1)", "scale", 3.0, "index 2, .* without variance.* converge slowly"),
        ("power_exponential", "exponent", 1.3, "index 1.3, .* without variance"),
        ("matern", "nu", 1.1, None),
        ("power_exponential(exponent=2)", "scale", 3.0, None),
        ("rational_quadratic", "alpha", 0.1, None),
    ],
)
def test_gradients_of_heavy_tails_are_warned_of(text, name, value, said):
    torch = pytest.importorskip("torch")
    u = points(text, 4, rng=0)
    transport_points(u, text, **{name: np.asarray(value)})
    value = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    with pytest.warns(UserWarning, match=said) if said else contextlib.nullcontext():
        transport_points(u, text, **{name: value})


def test_every_library(xp):
    for text in ("matern(nu=1.3, scale=3)", "gaussian(scale=3)"):
        law = kernels.parse(text)
        found = evaluate_phi(xp([1.0, 4.0]), law, scale=xp(3.0))
        np.testing.assert_allclose(xp.host(found), law([1.0, 4.0]), rtol=1e-5)
        u = points(law, 4, rng=0)
        np.testing.assert_allclose(xp.host(transport_points(u, law, scale=xp(3.0))), law.transport(u), rtol=1e-5)
    for text, name in (("matern", "nu"), ("matern(ndim=2)", "nu"), ("rational_quadratic", "alpha")):
        law = kernels.parse(text)
        u, value = points(law, 4, rng=0), getattr(law, name)
        np.testing.assert_allclose(
            xp.host(transport_points(u, law, **{name: xp(value)})), law.transport(u), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: transport_points([0.3], "periodic", scale=np.asarray(1.0)), "scale of periodic has no .* 'period'"),
        (
            lambda: transport_points([[0.3, 0.3, 0.3]], "matern(ndim=2)", nu=np.ones(2)),
            "nu has shape \\(2,\\); .* one number$",
        ),
        (lambda: transport_points([0.3], "gaussian(ndim=2)", scale=np.asarray(1.0)), "points has shape"),
        (lambda: transport_points([1.0], "gaussian", scale=np.asarray(1.0)), "inside the unit cube"),
        (lambda: evaluate_phi([1.0], "gaussian * cauchy", scale=np.asarray(1.0)), "not one family"),
        (lambda: evaluate_phi([1.0], "gaussian", nu=np.asarray(1.0)), "no parameter 'nu'; expected 'scale'"),
        (lambda: evaluate_phi([[1.0, 2.0]], "gaussian(ndim=2)", scale=np.ones(3)), "scale has shape \\(3,\\)"),
        (
            lambda: transport_points([[0.3, 0.4]], "gaussian(ndim=2)", scale=np.ones((1, 2))),
            "scale has shape \\(1, 2\\)",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_a_scale_is_learned_from_a_curve():
    torch = pytest.importorskip("torch")
    lags = torch.arange(64.0, dtype=torch.float64)
    wanted = torch.tensor(rfrope.kernel("matern", nu=1.5, scale=12.0)(lags.numpy()))
    values = {
        name: torch.tensor(v, dtype=torch.float64, requires_grad=True) for name, v in (("nu", 0.8), ("scale", 6.0))
    }
    step = torch.optim.LBFGS(values.values(), max_iter=100, line_search_fn="strong_wolfe")

    def loss():
        step.zero_grad()
        found = ((evaluate_phi(lags, "matern", **values) - wanted) ** 2).sum()
        found.backward()
        return found

    step.step(loss)
    assert float(values["nu"].detach()) == pytest.approx(1.5, abs=0.02)
    assert float(values["scale"].detach()) == pytest.approx(12.0, abs=0.1)


def test_without_values_both_are_the_kernels_own():
    law = kernels.parse("matern(nu=1.3, scale=3)")
    u = points(law, 4, rng=0)
    assert transport_points(u, law).tolist() == law.transport(u).tolist()
    assert evaluate_phi([0.0, 2.0], law).tolist() == law([0.0, 2.0]).tolist()


def test_exponents_that_are_learned_are_mapped_over_and_end_at_2():
    torch = library("torch").module
    u, at = np.random.default_rng(0).random((5, 3)), torch.tensor([1.5, 1.9], dtype=torch.float64)
    found = torch.func.vmap(lambda one: transport_points(u, "power_exponential", exponent=one))(at)
    for row, exponent in zip(found, at, strict=True):
        torch.testing.assert_close(row, transport_points(u, "power_exponential", exponent=exponent))
    with pytest.raises(ValueError, match=r"exponent is 2\.1; expected at most 2"):
        transport_points(u, "power_exponential", exponent=torch.tensor(2.1, requires_grad=True))


def test_weights_of_another_shape_are_blamed_themselves():
    for weights in (0.3, [[0.5, 0.5]]):
        with pytest.raises(ValueError, match=r"weights has shape .*; expected \(J,\)"):
            evaluate_phi([1.0], "spectral_mixture", weights=np.asarray(weights))
