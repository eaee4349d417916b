"""The device to CUDA, as far as it can be gone through without a device: views, streams, sources and launches."""

import importlib.util
import warnings

import numpy as np
import pytest
import stand_in

from rfrope._backends.cuda import device


@pytest.fixture
def numpy_for_cupy(monkeypatch):
    monkeypatch.setattr(device, "space", lambda: np)


@pytest.mark.usefixtures("numpy_for_cupy")
def test_tensors_are_viewed_without_a_copy(torch):
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    for tensor in (base, base[:, ::2], base.transpose(0, 2), base[1:, :0], torch.tensor(2.5), base[0, 0].expand(5, 4)):
        view = device.view(tensor)
        assert view.shape == tuple(tensor.shape)
        assert view.dtype == np.float32
        np.testing.assert_array_equal(view, tensor.numpy())
        if view.size:
            assert view.ctypes.data == tensor.data_ptr()
            assert view.strides == tuple(4 * s for s in tensor.stride())
    for dtype, name in ((torch.float64, "float64"), (torch.float16, "float16"), (torch.int64, "int64")):
        assert device.view(base.to(dtype)).dtype == name
    parameter = torch.nn.Parameter(base.clone())
    with torch.no_grad():
        device.view(parameter)[0, 0, 0] = 7.0
    assert parameter[0, 0, 0].item() == 7.0


@pytest.mark.usefixtures("numpy_for_cupy")
def test_numbers_become_float64_in_the_library_they_come_from(torch):
    for tensor in (torch.tensor([1, 2]), torch.tensor([1.0, 2.0], dtype=torch.bfloat16)):
        found = device.doubles(tensor, importlib.import_module("array_api_compat.torch"))
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, [1.0, 2.0])


class TorchStream:
    cuda_stream, device_index = 4096, 0


class NewTorchStream(TorchStream):
    def __cuda_stream__(self):
        return 0, self.cuda_stream


@pytest.mark.parametrize("stream", [TorchStream(), NewTorchStream()])
def test_the_stream_of_torch_is_taken_without_a_warning(stream):
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device.stream_of(stream).ptr == 4096


def test_what_is_cached_is_made_once_and_goes_by_age_and_when_nothing_reads_it(monkeypatch):
    """A wait is for the device of what goes, and what somebody holds stays."""
    made, order = [], [1, 2, 1, 3, 2]

    def make(key):
        made.append(key)
        return stand_in.on_device(np.full(4, float(key)))

    def cached(key):
        return device.cached(key, lambda: make(key))

    monkeypatch.setattr(device, "_MOST_CACHED", 3)
    monkeypatch.setattr(device, "view", lambda x: x)
    with stand_in.standing_in(devices=3) as machine, stand_in.Device(2):
        assert [cached(key).host[0] for key in order] == order
        assert (made, machine.of("read")) == ([1, 2, 3], [])
        held = cached(1)
        machine.work.clear()
        cached(4)
        assert [*device._CACHED] == [2, 1, 4]
        assert machine.where() == {(2, 0)}
        for key in (5, 6):
            cached(key)
        assert [*device._CACHED] == [1, 5, 6]
        assert held.host[0] == 1.0
        monkeypatch.setattr(device, "_MOST_BYTES", 32)
        del held
        cached(7)
        assert [*device._CACHED] == [6, 7]
        assert machine.of("read") == ["synchronize"] * 5
