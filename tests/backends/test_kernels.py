"""The kernel of Triton, run on a device or by its interpreter, against the generic function on the CPU."""

import itertools
import math

import numpy as np
import pytest
import triton_device
from conftest import rows
from triton_device import PLACE, assert_intact, assert_rounded, fenced, placed, uniform

import rfrope
from rfrope._core import array
from rfrope._core.angles import Angles
from rfrope._core.blocks import MAGNITUDES, TurnOptions
from rfrope.rotation.turning import rotated

if triton_device.MISSING:
    pytest.skip(triton_device.MISSING, allow_module_level=True)

import torch

from rfrope._backends.triton import kernels, launches, rotation

pytestmark = triton_device.MARKS
ROOM = rotation.room
XP = array.named_namespace(torch)
ERROR = 6e-7  # of a feature, relative to the largest: float32 rounds the angle, cos and sin, products and their sum
PAIRINGS = list(itertools.product(("half", "interleaved"), repeat=2))
HALF = TurnOptions("half", "half")
TOKENS, BLOCKS = 19, 6


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def frequencies(*shape, seed=3):
    return 10.0 ** (-4.0 * (uniform(*shape, seed=seed) + 0.5))


@pytest.fixture(autouse=True)
def fenced_results(monkeypatch):
    """Memory for results lies amid other memory, which stays as it is; and there are several tiles of tokens."""
    made = []
    monkeypatch.setattr(launches, "_TILE", 128)
    monkeypatch.setattr(launches, "_keep_plan", launches.plan)

    def room(x, width):
        made.append(fenced(ROOM(x, width).zero_()))
        return made[-1]

    monkeypatch.setattr(rotation, "room", room)
    yield
    for one in made:
        assert_intact(one)


def turned(x, angles, turn):
    if isinstance(angles, Angles):
        words = placed(getattr(angles.frequencies, "turn_words", None))
        angles = Angles(*map(placed, angles[:3]), XP)
        if words is not None:
            angles.frequencies.turn_words = words
    there, turn = placed(x), turn._replace(scale=placed(turn.scale))
    found = rotation._turned(fenced(there) if x.is_contiguous() else there, placed(angles), turn, None)
    assert found is not None
    assert found.dtype == x.dtype
    return found.cpu()


def check(x, positions, omega, shift=None, error=ERROR, **options):
    """Turn by the kernel, and by the generic function in float64."""
    options = {"pairing": "half", "out_pairing": options.get("pairing", "half")} | options
    turn = TurnOptions(**options)
    found = turned(x, Angles(positions, omega, shift, XP), turn)
    exact = rotated.generic(x.double(), Angles(positions, omega, shift, XP), turn, None)
    assert found.shape == exact.shape
    assert_rounded(found, exact, error)


AT = torch.arange(TOKENS)[:, None]
ANGLES = {  # of features (2, 3, TOKENS, d): positions, frequencies, shift
    "one axis": (AT, frequencies(BLOCKS, 1), None),
    "int32": (AT.int(), frequencies(BLOCKS, 1), None),
    "three axes": (torch.randint(-99, 99, (TOKENS, 3)), frequencies(BLOCKS, 3), None),
    "two axes and heads": (torch.randint(-99, 99, (TOKENS, 2)), frequencies(3, BLOCKS, 2), None),
    "each sequence": (torch.randint(0, 9999, (2, 1, TOKENS, 1)), frequencies(BLOCKS, 1), None),
    "each sequence and head": (torch.randint(0, 9999, (2, 1, TOKENS, 1)), frequencies(3, BLOCKS, 1), None),
    "float64": (uniform(TOKENS, 1) * 9e3, frequencies(BLOCKS, 1), None),
    "float32": (uniform(TOKENS, 2).float() * 9e3, frequencies(BLOCKS, 2), None),
    "shift of blocks": (AT, frequencies(BLOCKS, 1), uniform(BLOCKS) * 20.0),
    "shift of heads": (AT, frequencies(BLOCKS, 1), uniform(3, 1, BLOCKS) * 20.0),
    "shift of tokens": (AT, frequencies(BLOCKS, 1), uniform(2, 1, TOKENS, 1) * 20.0),
    "one frequency": (AT, frequencies(1, 1).expand(BLOCKS, 1), uniform(BLOCKS)),
    "one position": (AT[:1] + 77, frequencies(BLOCKS, 1), None),
}


@pytest.mark.parametrize("name", ANGLES)
@pytest.mark.parametrize("pairings", PAIRINGS, ids="-".join)
def test_the_kernel_turns_as_the_generic_function_does(name, pairings):
    positions, omega, shift = ANGLES[name]
    x = uniform(2, 3, TOKENS, 2 * BLOCKS + 5).float()  # five are not turned
    check(x, positions, omega, shift, pairing=pairings[0], out_pairing=pairings[1])
    check(x, positions, omega, shift, pairing=pairings[0], out_pairing=pairings[1], inverse=True, scale=1.7)


SCALES = {
    "number": 0.6,
    "one": uniform() + 1.0,
    "blocks": uniform(BLOCKS) + 1.0,
    "tokens": uniform(2, 1, TOKENS, 1) + 1.0,
}


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("inverse", [False, True])
def test_scales(name, inverse):
    check(uniform(2, 3, TOKENS, 2 * BLOCKS).float(), *ANGLES["one axis"], scale=SCALES[name], inverse=inverse)


def test_float32_scales_and_shifts():
    x, omega = uniform(2, 3, TOKENS, 2 * BLOCKS).float(), frequencies(BLOCKS, 1).float()
    check(x, AT, omega, uniform(BLOCKS).float() * 9.0, scale=(uniform(BLOCKS) + 1.0).float())


LAYOUTS = {  # memory of features (2, 3, TOKENS, 12)
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every second feature": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "features first": lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    "one batch for all": lambda x: x[:1].expand(2, -1, -1, -1),
    "part of a larger one": lambda x: torch.nn.functional.pad(x, (3, 5, 1, 2))[:, :, 1:-2, 3:-5],
    "out of line": lambda x: torch.nn.functional.pad(x.flatten(), (1, 0))[1:].view(x.shape),
}


def test_rows_of_every_alignment_in_turn():
    """Triton compiles for addresses and strides that 16 divides, and must not take such code for others."""
    for start, extra in itertools.product((0, 1, 2, 4, 8), (0, 1, 8)):
        x = uniform(3 * 5 * 24 + 8).bfloat16().as_strided((1, 3, 5, 16), (0, 5 * (16 + extra), 16 + extra, 1), start)
        check(x, AT[:5], frequencies(8, 1))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("pairings", PAIRINGS, ids="-".join)
def test_features_of_any_strides(name, pairings):
    x = LAYOUTS[name](uniform(2, 3, TOKENS, 2 * BLOCKS).float())
    check(x, AT, frequencies(BLOCKS, 1), pairing=pairings[0], out_pairing=pairings[1])


# of which tensor a step along which axis is so long, and the pairing
FAR_APART = rows("backends/kernels.json", "far_apart")


def far_apart(values, axis, folder):
    """Numbers with more than 2**31 elements between them; so is what steps of 32 bits would reach.

    On the CPU in a file with holes: only pages that are touched are there.
    """
    length = values.shape[axis]
    step = 2**29 + 8 if length < 9 else 2**28 + 8
    steps = [step if i == axis else old for i, old in enumerate(values.select(axis, 0).unsqueeze(axis).stride())]
    size = 2**31 + step * length
    if PLACE == "cpu":
        memory = torch.from_file(str(folder / "sparse"), shared=True, size=size, dtype=values.dtype)
    elif torch.cuda.mem_get_info()[0] > size * values.itemsize:
        memory = torch.empty(size, dtype=values.dtype, device=PLACE)
    else:
        pytest.skip(f"the device has no {size * values.itemsize:.2g} bytes")
    return memory.as_strided(values.shape, steps, 2**31).copy_(values)


@pytest.mark.parametrize("name", FAR_APART)
def test_steps_between_more_than_2_to_the_31_elements(name, tmp_path):
    which, axis, pairing = FAR_APART[name]
    shape = [1, 9 if which != "x" else 1, 1, 2 * BLOCKS]
    if which == "x" and axis < 3:
        shape[axis] = 9
    heads = shape[1]
    given = {
        "x": uniform(*shape).half(),
        "positions": torch.randint(0, 99, (shape[0], heads if which == "positions" else 1, shape[2], 1)),
        "frequencies": frequencies(1, heads if which == "frequencies" else 1, BLOCKS, 1),
        "shift": uniform(1, heads, 1, BLOCKS) if which == "shift" else None,
        "scale": uniform(1, heads, 1, BLOCKS) + 1.0 if which == "scale" else None,
    }
    phases = given["positions"] * given["frequencies"][..., 0][:, :, None]
    phases = phases if given["shift"] is None else phases + given["shift"]
    scale = 1.0 if given["scale"] is None else given["scale"]
    exact = rfrope.rotate_by_phases(given["x"].double(), phases, pairing=pairing, scale=scale)
    given = {name: placed(far_apart(one, axis, tmp_path) if name == which else one) for name, one in given.items()}
    x, *others = given.values()
    options = launches.Options(1.0, 0, False, pairing, pairing, False, False, False)
    launches.launch(kernels.turn, (x, x, None), None, launches.Given(*others), options)
    assert_rounded(x, exact, ERROR)


SHAPES = [
    ((12,), (1,)),
    ((TOKENS, 12), (TOKENS, 1)),
    ((4, TOKENS, 12), (TOKENS, 1)),
    ((2, TOKENS, 4, 12), (TOKENS, 1, 1)),  # tokens before heads
    ((2, TOKENS, 4, 12), (2, TOKENS, 1, 1)),
    ((TOKENS, 2, 4, 12), (TOKENS, 1, 1, 1)),
    ((2, 0, 4, 12), (0, 1, 1)),
    ((1, 1, 1, 12), (1, 1)),
    ((2, 9, 33, 12), (33, 1)),  # more heads than a program has
]


@pytest.mark.parametrize(("shape", "at"), SHAPES, ids=str)
def test_axes_of_features_in_any_order(shape, at):
    check(uniform(*shape).float(), torch.randint(0, 999, at), frequencies(BLOCKS, 1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("pairings", PAIRINGS, ids="-".join)
def test_features_of_16_bits_are_rounded_once(dtype, pairings):
    x = uniform(2, 3, TOKENS, 2 * BLOCKS + 2).to(getattr(torch, dtype))
    check(x, AT + 2**31, frequencies(BLOCKS, 1), pairing=pairings[0], out_pairing=pairings[1])


@pytest.mark.parametrize("blocks", [1, 2, 3, 64, 65, 128])
def test_numbers_of_blocks(blocks):
    check(uniform(2, 3, 2 * blocks + blocks % 2).float(), AT[:3], frequencies(blocks, 1))
    check(uniform(2, 3, 2 * blocks).float(), AT[:3], frequencies(blocks, 1), pairing="interleaved")


# -- positions and frequencies -----------------------------------------------------------------------------------------

FAR = {
    "2**31": torch.tensor([2**31, 2**31 - 1, -(2**31), 2**31 + 12_345]),
    "2**40": torch.tensor([2**40, 2**40 - 1, -(2**40), 2**40 + 12_345]),
    "2**53": torch.tensor([2**53, 2**53 - 1, -(2**53), 2**52 + 12_345]),
    "2**24 in float32": torch.tensor([2.0**24, 2.0**24 - 1.0, -(2.0**24), 2.0**23 + 0.5]),
    "2**24 in float64": float64([2.0**24 + 0.123, -(2.0**24) + 0.77, 2.0**24 - 2.0**-20, 1.0 / 3.0]),
    "2**40 in float64": float64([2.0**40, 2.0**40 + 2.0**-9, -(2.0**40), 0.5**12]),
    "small in float32": torch.tensor([1e-3, -1e-20, 1e-45, -0.0]),
    "small in float64": float64([1e-3, -1e-20, 5e-324, 2.0**-31]),
}


FAST_AND_SLOW = torch.cat([frequencies(4, 1), float64([[3.0], [-1.0]])])


@pytest.mark.parametrize("name", FAR)
def test_far_positions(name):
    check(uniform(3, 4, 12).float(), FAR[name][:, None], FAST_AND_SLOW)


@pytest.mark.parametrize("name", ["2**31", "2**40", "2**53"])
def test_far_positions_by_words(name):
    positions, prepared = FAR[name][:, None], FAST_AND_SLOW.clone()
    prepared.turn_words = torch.from_numpy(triton_device.turn_words(prepared.numpy()))
    read = launches.read_frequencies(Angles(positions, prepared, None, XP))
    assert (read.dtype, read.shape) == (torch.int64, (6, 2))
    assert launches.read_frequencies(Angles(positions.double(), prepared, None, XP)) is prepared
    x = uniform(3, 4, 12).float()
    exact = rotated.generic(x.double(), Angles(positions, FAST_AND_SLOW, None, XP), HALF, None)
    assert_rounded(turned(x, Angles(positions, prepared, None, XP), HALF), exact, ERROR)


def test_frequencies_of_any_size():
    """Those of 2**53 positions and more turn by what their last bit is worth; position times frequency is exact."""
    omega = float64([1e-300, 5e-324, 1e-20, 2.0**-70, 1e-9, 7e3, -3e6, 2.0**52, 0.0, -0.0, 2.0**-53, math.pi])
    check(uniform(3, 4, 24).float(), torch.tensor([1, -1, 77, 4])[:, None], omega[:, None])
    check(uniform(3, 4, 24).float(), torch.tensor([1, -1, 77, 4])[:, None], omega[:, None].float())
    check(uniform(3, 2, 16).float(), float64([0.25, -33.7])[:, None], omega[:8, None].clamp(-3e6, 3e6))
    near = float64([1e-4, -(2.0**-20) / 3.0])[:, None]  # whose bits stand below 2**-32
    check(uniform(3, 2, 8).float(), near, float64([1e5, -3e6, 2.0**20 * math.pi, 1.0])[:, None])
    check(uniform(3, 2, 8).float(), near.float(), float64([1e5, -3e6, 2.0**20 * math.pi, 1.0])[:, None])


def test_a_carry_between_words():
    """One frequency in two thousand needs it: those of a generator of which the low word of the product overflows."""
    high, low = kernels._TURN_HIGH.value, kernels._TURN_LOW.value
    numbers = np.random.default_rng(0).integers(2**52, 2**53, 100_000).tolist()
    found = [n * 2.0**-52 for n in numbers if n * high % 2**64 + (n * low >> 64) >= 2**64]
    assert len(found) > 8
    check(uniform(2, 2, 2 * len(found)).float(), torch.tensor([[2**50], [1 - 2**50]]), float64(found)[:, None])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**60])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_frequencies_without_a_phase_give_nan_there_alone(bad, dtype):
    omega = torch.tensor([1.0, bad, 0.5], dtype=dtype)[:, None]
    found = turned(torch.ones(2, 6), Angles(AT[:2], omega, None, XP), HALF)
    assert found.isnan().all(0).tolist() == [False, True, False, False, True, False]
    if not math.isfinite(bad):
        at = Angles(AT[:2].to(dtype) + bad, frequencies(3, 1), None, XP)
        assert turned(torch.ones(2, 6), at, HALF).isnan().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scales_that_are_no_numbers_are_seen(bad):
    turn, at = TurnOptions("half", "half", float64([1.0, bad])), Angles(AT[:2], frequencies(2, 1), None, XP)
    with np.errstate(all="ignore"):  # of the interpreter, which computes by NumPy
        found = turned(torch.ones(2, 4), at, turn)
    exact = rotated.generic(torch.ones(2, 4).double(), at, turn, None)
    assert torch.equal(found.isnan(), exact.isnan())
    assert torch.equal(found.isinf(), exact.isinf())


@pytest.mark.parametrize("pairings", PAIRINGS, ids="-".join)
def test_phases_instead_of_positions(pairings):
    x, phases = uniform(2, 3, TOKENS, 16).float(), uniform(3, TOKENS, BLOCKS) * 1e6
    options = dict(zip(("pairing", "out_pairing"), pairings, strict=True), scale=1.3, inverse=True)
    exact = rfrope.rotate_by_phases(x.double(), phases, **options)
    assert_rounded(turned(x, phases, TurnOptions(**options)), exact, ERROR)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_radians_from_2_to_the_53_on_are_nan_there_alone(dtype):
    """1/(2 pi) is held to 128 bits (docs/explain/precision.rst). Below they are exact; elsewhere all are numbers."""
    last = 2.0**53 - (1.0 if dtype == torch.float64 else 2.0**29)
    phases = torch.tensor([1.0, last, -last, 2.0**53, -(2.0**53), 1e30, math.inf], dtype=dtype)
    x, at = uniform(2, 14).float(), Angles(AT[:2] * 0, frequencies(7, 1), phases, XP)
    exact = rotated.generic(x.double(), at._replace(shift=phases.double()), HALF, None)
    assert exact[..., 3:6].isfinite().all()
    for found in (turned(x, phases, HALF), turned(x, at, HALF)):
        assert found.isnan().all(0).tolist() == [False] * 3 + [True] * 4 + [False] * 3 + [True] * 4
        kept = [0, 1, 2, 7, 8, 9]
        assert_rounded(found[:, kept], exact[:, kept], ERROR)


@pytest.mark.parametrize("out_pairing", ["half", "interleaved"])
@pytest.mark.parametrize("softplus", [False, True])
def test_magnitudes(out_pairing, softplus):
    x = uniform(2, 3, TOKENS, BLOCKS + 2).abs().float()
    if softplus:
        x *= torch.tensor([-60.0, 90.0])[:, None, None, None]  # next to nothing, and all of it
    check(x, AT, frequencies(BLOCKS, 1), pairing=MAGNITUDES, out_pairing=out_pairing, softplus=softplus)
    y = uniform(2, 3, TOKENS, 2 * BLOCKS + 2).float()
    check(y, AT, frequencies(BLOCKS, 1), pairing=out_pairing, out_pairing=MAGNITUDES, inverse=True)


# -- queries and keys together -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("softplus", "shift", "sets"), [(False, uniform(3, 1, 4), 3), (True, uniform(8), 1)], ids=["sets", "magnitudes"]
)
def test_queries_and_keys_in_one_launch_and_gradients_of_all(softplus, shift, sets):
    """Tokens are counted from 5, and results and gradients lie in a sum that hides no mistake."""
    turn = TurnOptions(MAGNITUDES if softplus else "half", "interleaved", 1.3, False, softplus)
    q, k = (
        fenced(placed((3.0 * uniform(2, heads, TOKENS, 8, seed=seed)).float())).requires_grad_()
        for seed, heads in enumerate((6, 3))
    )
    omega, shift = frequencies(sets, 8 if softplus else 4, 1).requires_grad_(), shift.clone().requires_grad_()
    learned = placed(omega), placed(shift)
    found = rotation.rotated_both(q, k, None, *learned, 5, turn, [])
    weights = [uniform(*one.shape, seed=8) for one in found]
    gradients = torch.autograd.grad(found, (q, k, *learned), [fenced(placed(one.float())) for one in weights])
    wide = [one.detach().double().cpu().requires_grad_() for one in (q, k)]
    places = torch.arange(5, 5 + TOKENS)[:, None]
    exact = [
        rotated.generic(one, Angles(places, omega.repeat_interleave(one.shape[1] // sets, 0), added, XP), turn, None)
        for one, added in zip(wide, (None, shift), strict=True)
    ]
    for one, other in zip(found, exact, strict=True):
        assert_rounded(one.detach(), other.detach(), ERROR)
    for one, other in zip(gradients, torch.autograd.grad(exact, (*wide, omega, shift), weights), strict=True):
        torch.testing.assert_close(one.double().cpu(), other, rtol=0, atol=1e-6 * float(other.abs().max()))


@triton_device.on_device_alone
def test_more_than_2_to_the_31_elements():
    x, omega = torch.empty(1, 33, 2**20, 64, dtype=torch.bfloat16, device=PLACE).normal_(), rfrope.geometric(32)
    found = rfrope.rotate(x, torch.arange(2**20, device=PLACE), placed(torch.from_numpy(omega)))
    for head, token in ((0, 0), (32, 2**20 - 1), (16, 777_777), (31, 2**20 - 17)):
        exact = rfrope.rotate(x[0, head, token].double().cpu().numpy(), np.int64(token), omega)
        assert_rounded(found[0, head, token], torch.from_numpy(exact), ERROR)


# -- constants ---------------------------------------------------------------------------------------------------------


def test_the_table_of_1_over_2_pi():
    from rfrope._core.turns import _TURN

    assert kernels._TURN_HIGH.value << 64 | kernels._TURN_LOW.value == int(_TURN * 2**128)


def test_polynomials_are_as_near_as_said():
    a = np.linspace(-math.pi / 4, math.pi / 4, 10_001)
    z = a * a
    sin = a + a * z * (kernels._SIN_1.value + z * (kernels._SIN_2.value + z * kernels._SIN_3.value))
    cos = 1.0 - 0.5 * z + z * z * (kernels._COS_1.value + z * (kernels._COS_2.value + z * kernels._COS_3.value))
    assert np.abs(sin - np.sin(a)).max() < 3e-9
    assert np.abs(cos - np.cos(a)).max() < 3e-9
