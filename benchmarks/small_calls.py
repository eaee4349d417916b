"""Small calls of the functions of 0.1, where reading the arguments is most of the work.

``python -m benchmarks.compare 44a45bd HEAD --suite small`` times them, with 0.1 as the base. A call is named by the
place of its function now; `PLACES` has those of 0.1 where they were others.
"""

import atexit
import functools
import inspect
import os
import pathlib
import tempfile
import types

import numpy as np

PLACES = {
    "designs.optimise": "optimise",
    "frequencies.from_wavelengths": "from_wavelengths",
    "frequencies.pixel": "pixel",
    "frequencies.xpos_scales": "xpos_scales",
    "heads.positional_attention": "heads.attention_profile",
    "heads.positional_scores": "heads.score_profile",
    "models.from_rope_parameters": "from_rope_parameters",
    "moments.mean_kernel_band": "mean_kernel_band",
    "moments.relative_error": "relative_error",
    "rotation.from_complex": "from_complex",
    "rotation.phases": "phases",
    "rotation.shift_matrix": "shift_matrix",
    "rotation.to_complex": "to_complex",
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096}
_LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 8192,
}
_QWEN = {"model_type": "qwen3", "head_dim": 128, "max_position_embeddings": 131072, "rope_parameters": _YARN}
_LLAMA = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 131072, "rope_parameters": _LLAMA3}


def inputs(rfrope):
    """What the calls take: 16 blocks, 16 lags or positions, and a kernel that is at hand."""
    rng, lags = np.random.default_rng(0), np.arange(16.0)
    renamed = "lags" in inspect.signature(rfrope.analysis.mean_kernel).parameters  # from delta, after 0.1
    return types.SimpleNamespace(
        rfrope=rfrope,
        by_lag={"lags" if renamed else "delta": lags},
        omega=rfrope.geometric(16),
        wide=rfrope.geometric(16, base=1e5),
        axes=_axial(rfrope),
        kernel=rfrope.kernel("matern", nu=1.5, scale=16.0),
        lags=lags,
        steps=np.arange(16),
        q=rng.standard_normal(32),
        k=rng.standard_normal(32),
        x=rng.standard_normal((16, 32)),
        y=rng.standard_normal((16, 32)),
        narrow=rng.standard_normal((16, 32)).astype(np.float32),
        grid=np.stack(np.meshgrid(np.arange(4), np.arange(4)), axis=-1).reshape(-1, 2),
        short=[1.0] * 16,
        long=[2.0] * 16,
        values=np.exp(-0.1 * np.arange(16.0)),
        series=rng.standard_normal(256),
        path=_temporary("omega"),
        other=_temporary("kept"),
    )


def _temporary(name):
    """A file of this process, which is gone when that ends."""
    path = pathlib.Path(tempfile.gettempdir()) / f"rfrope-small-{os.getpid()}-{name}.npz"
    atexit.register(path.unlink, missing_ok=True)
    return path


def _axial(rfrope):
    found = rfrope.axial(rfrope.geometric(8), rfrope.geometric(8))
    return getattr(found, "frequencies", found)  # 0.1 has no Rope


def _gauss(x):
    return np.exp(-0.5 * x * x)


CALLS = {  # a function, then what it takes
    "rotate": lambda f, v: f(v.x, v.steps, v.omega),
    "rotate, float32": lambda f, v: f(v.narrow, v.steps, v.omega),
    "rotate, a token": lambda f, v: f(v.q, 5, v.omega),
    "rotate, two axes": lambda f, v: f(v.x, v.grid, v.axes),
    "rotate_by_phases": lambda f, v: f(v.x, v.x[:, :16]),
    "rotate_by_table": lambda f, v: f(v.x, v.y[:, :16], v.y[:, :16]),
    "rotation_table": lambda f, v: f(v.steps, v.omega),
    "scores": lambda f, v: f(v.x, v.y, v.steps, v.steps, v.omega),
    "block_coefficients": lambda f, v: f(v.x, v.y),
    "convert_pairing": lambda f, v: f(v.x, "half", "interleaved"),
    "sinusoidal": lambda f, v: f(v.steps, v.omega, pairing="half"),
    "rotation.phases": lambda f, v: f(v.steps, v.omega),
    "rotation.to_complex": lambda f, v: f(v.x),
    "rotation.from_complex": lambda f, v: f(v.x[:, :16] + 1j * v.x[:, 16:]),
    "rotation.shift_matrix": lambda f, v: f(5, v.omega, pairing="half"),
    "geometric": lambda f, v: f(16),
    "arithmetic": lambda f, v: f(16, step=0.1),
    "axial": lambda f, v: f(v.omega[:8], v.omega[:8]),
    "mixed": lambda f, v: f(16, v.values),
    "golden_gate": lambda f, v: f(16, low=0.1, high=1.0),
    "mrope": lambda f, v: f(v.omega, [4, 6, 6]),
    "frequencies.from_wavelengths": lambda f, v: f([8.0, 16.0, 32.0]),
    "frequencies.pixel": lambda f, v: f(16, max_freq=10.0),
    "frequencies.xpos_scales": lambda f, v: f(v.steps, 16),
    "kernel": lambda f, v: f("matern", nu=1.5, scale=16.0),
    "kernels.parse": lambda f, v: f("matern(nu=1.5, scale=16)"),
    "kernels.mixture": lambda f, v: f([0.5, 0.5], [v.kernel, v.kernel]),
    "kernels.axes": lambda f, v: f(v.kernel, v.kernel),
    "Kernel.phi": lambda f, v: v.kernel.phi(v.lags),
    "Kernel.phi, a number": lambda f, v: v.kernel.phi(3.0),
    "Kernel.phi2": lambda f, v: v.kernel.phi2(v.lags),
    "Kernel.density": lambda f, v: v.kernel.density(v.lags),
    "Kernel.transport": lambda f, v: v.kernel.transport(0.5 * v.values[:, None]),
    "sample": lambda f, v: f(v.kernel, 16, rng=0),
    "sample, quantile": lambda f, v: f(v.kernel, 16, design="quantile"),
    "sample, heads": lambda f, v: f(v.kernel, 16, rng=0, heads=4),
    "designs.optimise": lambda f, v: f("gaussian(scale=8)", 4, max_lag=32),
    "expected_score": lambda f, v: f(v.x, v.y, v.lags, v.kernel),
    "score_variance": lambda f, v: f(v.x, v.y, v.lags, v.kernel),
    "blocks_for_error": lambda f, v: f(v.kernel, max_lag=16, error=0.1),
    "moments.relative_error": lambda f, v: f(v.x, v.y, v.lags, v.kernel),
    "moments.mean_kernel_band": lambda f, v: f(kernel=v.kernel, n_blocks=16, **v.by_lag),
    "estimate_kernel, 256": lambda f, v: f(kernel=v.kernel, n_samples=256, rng=0, **v.by_lag),
    "estimate_kernel, 4096": lambda f, v: f(kernel=v.kernel, n_samples=4096, rng=0, **v.by_lag),
    "estimate_kernel, sets": lambda f, v: f(
        kernel=v.kernel, n_samples=1024, n_blocks=16, design="stratified", rng=0, **v.by_lag
    ),
    "estimate_scores, 256": lambda f, v: f(v.q, v.k, v.lags, v.kernel, n_trials=256, rng=0),
    "estimate_scores, 4096": lambda f, v: f(v.q, v.k, 8.0, v.kernel, n_trials=4096, rng=0),
    "validate": lambda f, v: f(v.kernel, rng=0, n_samples=1024, n_trials=256),
    "analysis.mean_kernel": lambda f, v: f(frequencies=v.omega, **v.by_lag),
    "analysis.log_uniform_kernel": lambda f, v: f(v.lags),
    "analysis.first_negative_lag": lambda f, v: f(v.omega, 64),
    "analysis.aliasing_distance": lambda f, v: f(v.omega, 64),
    "analysis.base_for_context": lambda f, v: f(64, 16),
    "analysis.sine_share": lambda f, v: f(v.x, v.y, frequencies=v.omega, **v.by_lag),
    "analysis.similarity": lambda f, v: f(frequencies=v.omega, **v.by_lag),
    "analysis.departure": lambda f, v: f(v.x, v.y, frequencies=v.omega, **v.by_lag),
    "analysis.fit_kernel": lambda f, v: f(v.omega, 64, names=["gaussian"]),
    "analysis.wavelengths": lambda f, v: f(v.omega),
    "analysis.turns": lambda f, v: f(v.omega, 64.0),
    "analysis.summarise": lambda f, v: f(v.omega, context=256),
    "heads.effective_offset": lambda f, v: f(v.x, v.y, v.omega, max_lag=64),
    "heads.offset_of": lambda f, v: f(v.omega, v.values, low=-64.0),
    "heads.phase_shift": lambda f, v: f(frequencies=v.omega, offset=-1.0),
    "heads.aligned_shift": lambda f, v: f(frequencies=v.omega, offset=-1.0, cosine=v.values),
    "heads.shifted_scores": lambda f, v: f(v.q, v.k, frequencies=v.omega, shift=v.values, **v.by_lag),
    "heads.shifted_mean_kernel": lambda f, v: f(frequencies=v.omega, shift=v.values, **v.by_lag),
    "heads.profile": lambda f, v: f(v.x, v.y, frequencies=v.omega, **v.by_lag),
    "heads.positional_weights": lambda f, v: f(v.omega, d_model=64),
    "heads.positional_scores": lambda f, v: f(frequencies=v.omega, **v.by_lag),
    "heads.positional_attention": lambda f, v: f(v.omega, 64),
    "scaling.linear": lambda f, v: f(v.omega, 4.0),
    "scaling.ntk": lambda f, v: f(v.omega, 4.0),
    "scaling.dynamic_ntk": lambda f, v: f(v.omega, 4.0, seq_len=8192, max_position_embeddings=4096),
    "scaling.yarn": lambda f, v: f(v.omega, 4.0, original_max_position_embeddings=4096),
    "scaling.llama3": lambda f, v: f(
        v.omega, 8.0, original_max_position_embeddings=8192, low_freq_factor=1.0, high_freq_factor=4.0
    ),
    "scaling.longrope": lambda f, v: f(
        v.omega, short_factor=v.short, long_factor=v.long, original_max_position_embeddings=4096, factor=4.0
    ),
    "scaling.proportional": lambda f, v: f(v.omega, partial_rotary_factor=0.5),
    "models.from_rope_parameters": lambda f, v: f(_YARN, head_dim=64),
    "from_config": lambda f, v: f(_QWEN),
    "from_config, llama3": lambda f, v: f(_LLAMA),
    "bochner.from_autocorrelation": lambda f, v: f(v.values),
    "bochner.from_series": lambda f, v: f(v.series, max_lag=8),
    "bochner.from_function": lambda f, v: f(_gauss),
    "bochner.from_density": lambda f, v: f(_gauss, normalise=True),
    "bochner.nearest": lambda f, v: f(_gauss),
    "save": lambda f, v: f(v.path, v.omega, overwrite=True),
    "load": lambda f, v: f(v.other),
}


def jobs():
    """Jobs of `benchmarks.compare_jobs`, by the names of the calls."""
    return {name: functools.partial(_job, name) for name in CALLS}


def _job(name, rfrope):
    values = inputs(rfrope)
    if name == "load":
        rfrope.save(values.other, values.omega, overwrite=True)
    place = name.partition(",")[0]
    function = None if place.startswith("Kernel.") else _found(rfrope, place)
    return functools.partial(CALLS[name], function, values)


def _found(rfrope, place):
    """A function by its place now, or that of 0.1."""
    try:
        return functools.reduce(getattr, place.split("."), rfrope)
    except AttributeError:
        return functools.reduce(getattr, PLACES[place].split("."), rfrope)
