"""The module for PyTorch, and what goes wrong with a naive one: each failure is a test of both."""

import contextlib
import copy
import doctest
import importlib
import io

import numpy as np
import pytest
from campaign import campaign
from conftest import library

import rfrope

torch = library("torch").module
from torch_modules import FREQUENCIES, WIDTH, features  # noqa: E402

from rfrope.layers import torch as layers  # noqa: E402
from rfrope.layers.torch import RotaryEmbedding  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # of torch, about its own use of it


class Naive(torch.nn.Module):
    """As such modules are written: a buffer of frequencies in float32, phases and tables in the dtypes at hand.

    With learned frequencies the buffer is a parameter.
    """

    def __init__(self, persistent=False, learned=False):
        super().__init__()
        inv_freq = torch.asarray(FREQUENCIES.astype(np.float32))
        if learned:
            self.inv_freq = torch.nn.Parameter(inv_freq)
        else:
            self.register_buffer("inv_freq", inv_freq, persistent=persistent)

    def forward(self, q, k, positions=None, offset=0):
        positions = torch.arange(q.shape[-2]) + offset if positions is None else positions
        phases = positions[..., None].to(self.inv_freq.dtype) @ self.inv_freq[None]
        cos, sin = (torch.cat([v, v], -1).to(q.dtype) for v in (phases.cos(), phases.sin()))
        return tuple(x * cos + torch.cat((-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]), -1) * sin for x in (q, k))


def ours(persistent=False, learned=False):
    return RotaryEmbedding(FREQUENCIES, learnable="frequencies" if learned else False)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def error(module, offset=4000, dtype=torch.float32, frequencies=FREQUENCIES):
    """Largest error of turned queries and keys, beside the rounding of the largest."""
    q, k = features(2, 4, 3, WIDTH, dtype=dtype), features(2, 2, 3, WIDTH, dtype=dtype, seed=1)
    worst = 0.0
    for x, turned in zip((q, k), module(q, k, offset=offset), strict=True):
        exact = rfrope.rotate(x.double(), torch.arange(3) + offset, frequencies)
        worst = max(worst, float((turned.detach().double() - exact).abs().max() / exact.abs().max()))
    return worst / torch.finfo(dtype).eps


def flattened_for_sharding(make, learned=False):
    """As FSDP with mixed precision: one flat tensor of the low precision holds what is a parameter or buffer."""
    module = make(learned=learned)
    held = [*module.named_parameters(), *module.named_buffers()]
    flat = torch.cat([value.detach().reshape(-1).to(torch.bfloat16) for _, value in held] or [torch.empty(0)])
    start = 0
    for name, value in held:
        view = flat[start : start + value.numel()].view(value.shape)
        start += value.numel()
        store = module._buffers if name in module._buffers else module._parameters
        store[name] = view if name in module._buffers else torch.nn.Parameter(view)
    return error(module)


def from_the_meta_device(make, learned=False):
    with torch.device("meta"):
        module = make(learned=learned)
    with garbage():
        module.to_empty(device="cpu")
    return error(module)


@contextlib.contextmanager
def garbage():
    """What memory holds that nobody wrote to, for sure."""

    def filling(real):
        return lambda *args, **options: filled(real(*args, **options))

    def filled(made):
        return made if made.is_meta or not made.is_floating_point() else made.fill_(0.7)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("empty_like", "empty"):
            patch.setattr(torch, name, filling(getattr(torch, name)))
        yield


def from_pretrained(make):
    """As a loader that makes models on the meta device, and fills in buffers that no file has with empty memory."""
    with torch.device("meta"):
        module = torch.nn.ModuleDict({"rotary": make(), "linear": torch.nn.Linear(2, 2)})
    for one in module.modules():
        for name, value in [*one._buffers.items()]:
            one._buffers[name] = torch.full_like(value, 0.7, device="cpu")
    module.load_state_dict({"linear.weight": torch.ones(2, 2), "linear.bias": torch.ones(2)}, strict=False, assign=True)
    return error(module["rotary"])


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def an_old_checkpoint(make):
    """One in bfloat16 that holds ``inv_freq``, as models of 2023 do."""
    module = make(persistent=True)
    module.load_state_dict({"inv_freq": torch.asarray(FREQUENCIES).to(torch.bfloat16)})
    return error(module)


def its_own_state(make):
    """In the other direction, by way of a file in bfloat16."""
    module, fresh = make(persistent=True), make(persistent=True)
    fresh.load_state_dict({name: value.bfloat16() for name, value in module.state_dict().items()})
    return error(fresh)


def learned_by_small_steps_in_bfloat16(make):
    """Of which none is lost: a hundred of 1e-5 are 1e-3."""
    module = make(learned=True).bfloat16()
    (parameter,) = module.parameters()
    with torch.no_grad():
        for _ in range(100):
            parameter.add_(1e-5)
    return error(module, frequencies=FREQUENCIES + 1e-3, offset=100)


def gradients_far_away(make):
    """Of the frequencies, beside those in float64."""
    module, at = make(learned=True), torch.arange(3) + 1_000_000
    q, k = features(2, 4, 3, WIDTH), features(2, 2, 3, WIDTH, seed=1)
    (parameter,) = module.parameters()
    (found,) = torch.autograd.grad(module(q, k, offset=1_000_000)[0].square().mul(q).sum(), parameter)
    w = torch.asarray(FREQUENCIES).requires_grad_()
    turned = rfrope.rotate(q.double(), at, w)
    (wanted,) = torch.autograd.grad(turned.square().mul(q.double()).sum(), w)
    return float((found - wanted).abs().max() / wanted.abs().max()) / torch.finfo(torch.float32).eps


ROUNDED = "learned, and flattened for sharding"  # what was rounded cannot be brought back: ours says so
FAILURES = {  # of the naive module: it errs by more than 20 roundings
    "half": lambda make: error(make().half()),
    "bfloat16": lambda make: error(make().bfloat16()),
    "flattened for sharding": flattened_for_sharding,
    ROUNDED: lambda make: flattened_for_sharding(make, learned=True),
    "from the meta device": from_the_meta_device,
    "learned, from the meta device": lambda make: from_the_meta_device(make, learned=True),
    "from pretrained": from_pretrained,
    "copied": lambda make: error(copy.deepcopy(make().bfloat16()).float()),
    "saved and loaded": lambda make: error(saved(make().bfloat16()).float()),
    "an old checkpoint": an_old_checkpoint,
    "its own state": its_own_state,
    "learned in bfloat16": lambda make: error(make(learned=True).bfloat16()),
    "learned by small steps in bfloat16": learned_by_small_steps_in_bfloat16,
    "gradients far away": gradients_far_away,
    "far positions": lambda make: error(make(), offset=1_000_000),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures(name):
    """Ours errs by the rounding of its output; the naive module as the table says."""
    failure = FAILURES[name]
    if name == ROUNDED:
        with pytest.raises(TypeError, match=r"frequencies is a parameter of torch.bfloat16, which rounds it"):
            failure(ours)
    else:
        assert failure(ours) < 1.0
    assert failure(Naive) > 20.0


# -- learned -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cast", ["half", "bfloat16", "float", "double"])
def test_parameters_are_never_narrowed(cast):
    module = RotaryEmbedding(FREQUENCIES, "both")
    module.phases.data.fill_(0.1)
    getattr(module, cast)()
    assert module.frequencies.dtype == module.phases.dtype == torch.float64
    np.testing.assert_array_equal(module.frequencies.detach(), FREQUENCIES)
    assert float(module.phases.detach()[0]) == 0.1
    narrow = RotaryEmbedding(FREQUENCIES.astype(np.float32), learnable="frequencies")
    assert getattr(narrow, cast)().frequencies.dtype == torch.float32
    moved = narrow.to("meta", torch.bfloat16)
    assert (moved.frequencies.is_meta, moved.frequencies.dtype) == (True, torch.float32)


def test_states():
    fixed, learned = RotaryEmbedding(FREQUENCIES), RotaryEmbedding(FREQUENCIES, "both")
    assert list(fixed.state_dict()) == []
    assert list(learned.state_dict()) == ["frequencies", "phases"]
    learned.frequencies.data.mul_(1.5)
    other = RotaryEmbedding(FREQUENCIES, "both")
    other.load_state_dict({name: value.float() for name, value in learned.state_dict().items()}, assign=True)
    assert other.frequencies.dtype == torch.float64
    torch.testing.assert_close(other.frequencies, learned.frequencies, rtol=1e-7, atol=0)
    other.reset_parameters()
    np.testing.assert_array_equal(other.frequencies.detach(), FREQUENCIES)
    old = {"a.inv_freq": torch.asarray(FREQUENCIES) * 1.25, "a.cos_cached": torch.ones(3)}
    module = torch.nn.ModuleDict({"a": RotaryEmbedding(FREQUENCIES, learnable="frequencies")})
    module.load_state_dict(old)
    np.testing.assert_array_equal(module["a"].frequencies.detach(), FREQUENCIES * 1.25)
    with pytest.warns(UserWarning, match=r"a\.inv_freq of the state differs from the Rope's"):
        torch.nn.ModuleDict({"a": RotaryEmbedding(FREQUENCIES)}).load_state_dict(old)
    assert set(old) == {"a.inv_freq", "a.cos_cached"}, "the caller's state is left alone"
    RotaryEmbedding(rfrope.Rope(FREQUENCIES, sections=(6, 5, 5), interleaved=True)).load_state_dict(
        {"inv_freq": torch.tensor(FREQUENCIES).float()}
    )  # warns of nothing
    with pytest.raises(RuntimeError, match="Unexpected key"):
        fixed.load_state_dict(learned.state_dict())


def test_a_step_at_a_rate_for_weights_keeps_learned_frequencies_near_their_start():
    """AdamW's first step is the rate itself, ten times a slow frequency: of its logarithm that is a share."""
    for learnable, least, most in ((True, 0.99, 1.01), ("frequencies", -9.0, 9.0)):
        module = RotaryEmbedding(64, learnable)
        optimizer = torch.optim.AdamW([{"params": module.parameters(), "weight_decay": 0.0}], lr=1e-3)
        q, k = module(features(1, 2, 64, 64), features(1, 2, 64, 64, seed=1))
        (q @ k.mT).square().sum().backward()
        optimizer.step()
        ratio = module.rope.frequencies / module.start.frequencies
        assert (least < ratio.min(), ratio.max() < most) == (True, True)
        assert (ratio.min() < 0.0 or ratio.max() > 2.0) == (learnable == "frequencies")


# -- sharded -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mesh():
    """One process, which shards with itself."""
    distributed = torch.distributed
    if not distributed.is_available() or not hasattr(distributed, "HashStore"):
        pytest.skip("this PyTorch has no torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield importlib.import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


class Projected(torch.nn.Module):
    def __init__(self, rope, learnable):
        super().__init__()
        self.linear, self.rotary = torch.nn.Linear(WIDTH, WIDTH), RotaryEmbedding(rope, learnable)

    def forward(self, x):
        y = self.linear(x)
        return y.clone(), *self.rotary(y, y, offset=70_000)  # no view, of which it would warn


def sharded(model, mesh, by_itself, low):
    fsdp = importlib.import_module("torch.distributed.fsdp")
    if by_itself:
        fsdp.fully_shard(model.rotary, mesh=mesh)
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16) if low else fsdp.MixedPrecisionPolicy()
    return fsdp.fully_shard(model, mesh=mesh, mp_policy=policy)


@campaign
@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("learnable", [False, "both"])
@pytest.mark.parametrize("meta", [False, True])
def test_fully_shard(mesh, low, learnable, meta):
    """What is learned is sharded by itself, as its dtype and its precision are its own."""
    with torch.device("meta" if meta else "cpu"):
        model = sharded(Projected(FREQUENCIES, learnable), mesh, bool(learnable), low)
    if meta:
        with garbage():
            model.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in model.linear.parameters():
                parameter.fill_(0.01)
    for _ in range(2):
        y, q, k = model(features(2, 4, 3, WIDTH))
        exact = rfrope.rotate(y.detach().double(), np.arange(3) + 70_000, FREQUENCIES)
        bound = torch.finfo(q.dtype).eps * float(exact.abs().max())
        assert max(float((x.detach().double() - exact).abs().max()) for x in (q, k)) <= bound
        (q.float().square() @ k.float().mT).sum().backward()
    assert q.dtype == (torch.bfloat16 if low else torch.float32)
    for name, parameter in model.rotary.named_parameters():
        assert (name in ("frequencies", "phases"), parameter.dtype) == (True, torch.float64)
        assert float(parameter.grad.full_tensor().abs().sum()) > 0.0
    assert [name for name in model.state_dict() if "rotary" in name] == (
        ["rotary.frequencies", "rotary.phases"] if learnable else []
    )


@pytest.mark.parametrize("learnable", [False, "both"])
def test_features_of_several_processes_turn_where_torch_is_told_how(mesh, learnable):
    """As ColwiseParallel gives them without a local output: unlike others they do not combine with whole tensors."""
    tensor, beyond = map(importlib.import_module, ["torch.distributed.tensor", "torch.distributed.tensor.experimental"])
    module, rope, at = RotaryEmbedding(FREQUENCIES, learnable), rfrope.Rope(FREQUENCIES), torch.arange(3)
    q, k = features(2, 4, 3, WIDTH), features(2, 2, 3, WIDTH)
    shard = [tensor.Shard(1)]
    options = {"out_placements": (shard, shard), "in_placements": (shard, shard), "device_mesh": mesh}
    whole, apart = (q, k), [tensor.distribute_tensor(x, mesh, shard) for x in (q, k)]
    said = r"is a DTensor and .* is not; .*use_local_output=True.* local_map .* implicit_replication"
    alone, by_rope = (
        (lambda *both: [module.rotate(x) for x in both]),
        (lambda *both: [rope.rotate(x, at) for x in both]),
    )
    for call in (module, torch.compile(module, backend="eager"), alone, by_rope):
        with pytest.raises(TypeError, match=f"^[qx] {said}"):
            call(*apart)
        with beyond.implicit_replication():
            turned = call(*apart)
        for one in (turned, beyond.local_map(lambda *both, call=call: (*call(*both),), **options)(*apart)):
            for found, wanted in zip(one, module(*whole), strict=True):
                assert found.placements == (tensor.Shard(1),)
                torch.testing.assert_close(found.full_tensor(), wanted, rtol=0, atol=1e-6)
    with pytest.raises(TypeError, match=f"^x {said}"):
        rfrope.rotate_by_phases(apart[0], torch.ones(3, 16))
    phases = tensor.distribute_tensor(torch.ones(3, 16), mesh, [tensor.Replicate()])
    wanted = rfrope.rotate_by_phases(q, torch.ones(3, 16))
    torch.testing.assert_close(rfrope.rotate_by_phases(apart[0], phases).full_tensor(), wanted, rtol=0, atol=1e-6)


# -- where it is found -------------------------------------------------------------------------------------------------


def test_examples_of_its_documentation():
    found = doctest.testmod(layers)
    assert (found.attempted > 3, found.failed) == (True, 0)


def test_what_was_learned_stays_where_a_model_ends_its_construction():
    module = RotaryEmbedding(rfrope.geometric(8), "both")
    with torch.no_grad():
        module.phases += 0.25
        module.frequencies *= 1.5
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    module._is_hf_initialized = True  # as post_init of transformers marks what it is given
    assert all(torch.equal(kept[name], value) for name, value in module.state_dict().items())


def test_tables_and_constants_follow_the_module():
    module = RotaryEmbedding(FREQUENCIES, max_positions=2**17)
    assert error(module.bfloat16(), offset=131_068, dtype=torch.bfloat16) < 1.0
    assert module.state_dict() == {}
    with torch.device("meta"):
        module = RotaryEmbedding(FREQUENCIES, max_positions=8)
    assert error(module.to_empty(device="cpu"), offset=4) < 4.0
    with torch.inference_mode():
        made_there = RotaryEmbedding(FREQUENCIES)
        error(made_there)
    q = features(1, 1, 2, WIDTH).requires_grad_()
    made_there(q, q)[0].sum().backward()
    assert q.grad is not None


def test_wider_heads_turn_in_part():
    wide = features(1, 2, 3, 2 * WIDTH)
    rope = rfrope.Rope(FREQUENCIES, head_dim=2 * WIDTH)
    for module in (RotaryEmbedding(FREQUENCIES, head_dim=2 * WIDTH), RotaryEmbedding(rope)):
        turned = module(wide, wide)[0]
        assert torch.equal(turned[..., WIDTH:], wide[..., WIDTH:])
        assert torch.equal(turned[..., :WIDTH], module(wide[..., :WIDTH], wide[..., :WIDTH])[0])


@pytest.mark.parametrize("number", [8, np.int64(8)])
def test_a_number_of_features_is_their_ladder(number):
    """As rotary-embedding-torch and others take it."""
    np.testing.assert_array_equal(RotaryEmbedding(number).rope.frequencies, rfrope.geometric(4))
    assert "head_dim=16" in repr(RotaryEmbedding(number, head_dim=16))


def test_layers_are_found_by_their_name_without_an_import_of_their_own(monkeypatch):
    monkeypatch.delattr(rfrope.layers, "torch", raising=False)
    assert rfrope.layers.torch.RotaryEmbedding is RotaryEmbedding
    assert "torch" in dir(rfrope.layers)
    with pytest.raises(AttributeError, match=r"No rfrope\.layers attribute keras"):
        rfrope.layers.keras  # noqa: B018
    shown = repr(RotaryEmbedding([1.0], "both", layout="bthd"))
    assert shown.endswith("head_dim=2), learnable=frequencies and phases, layout='bthd')")
