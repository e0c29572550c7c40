"""Memory shared with other libraries, by DLPack and by numpy's array interface."""

import numpy as np
import pytest

import simrank
from simrank.errors import UnsupportedError


def test_a_host_tensor_is_shared_with_numpy_both_ways(ctx):
    """No copy: what one side writes, the other reads."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = ctx.from_dlpack(values)
    assert tensor.device == "cpu"
    for seen in (np.from_dlpack(tensor), np.asarray(tensor), tensor.numpy()):
        assert np.shares_memory(seen, values)
    values[0, 0] = 7
    assert tensor[0, 0].item() == 7
    tensor.fill_(3)
    assert (values == 3).all()
    assert (np.from_dlpack(tensor.T) == values.T).all()


@pytest.mark.parametrize("name", ["bool", "int8", "uint8", "uint16", "int64", "float16", "float64"])
def test_types_and_views_survive_the_way_there_and_back(ctx, name):
    """By both protocols, also of what lies between others."""
    values = np.array([[1, 0, 1], [0, 1, 1]], name)
    tensor = ctx.from_numpy(values, device="cpu")
    for view, wanted in ((tensor, values), (tensor[:, 1:], values[:, 1:]), (tensor[1, 2], 1)):
        for found in (np.from_dlpack(view), np.asarray(view)):
            assert found.dtype == name
            assert (found == wanted).all()
        assert (ctx.from_dlpack(np.from_dlpack(view)).numpy() == wanted).all()


def test_a_device_tensor_reaches_the_host_as_a_copy_that_waits(ctx):
    """As a host read does (D4): by DLPack where the host is asked for, and by `numpy.asarray`."""
    tensor = ctx.zeros(4)
    tensor.add_(5)
    assert tensor.__dlpack_device__() == (12, 0)
    assert tensor.array[0] != 5
    copied = np.from_dlpack(tensor, device="cpu")
    assert copied.tolist() == [5] * 4
    assert not np.shares_memory(copied, tensor.array)
    tensor.add_(1)
    assert np.asarray(tensor).tolist() == [6] * 4
    assert not hasattr(tensor, "__array_interface__")


def test_a_device_tensor_is_refused_as_memory_of_a_device(ctx):
    """Its address is simulated: nobody could read there. The message says what to do."""
    tensor = ctx.ones(4)
    with pytest.raises(BufferError, match=r"cuda:0(.|\n)*tensor.cpu\(\)"):
        tensor.__dlpack__(stream=1)
    with pytest.raises(BufferError, match="as a copy only"):
        np.from_dlpack(tensor, device="cpu", copy=False)
    with pytest.raises(BufferError, match="no stream"):
        tensor.cpu().__dlpack__(stream=7)


def test_types_that_numpy_does_not_exchange_are_refused_and_their_bits_are_not(ctx):
    """bfloat16 and fp8; the cure in the message works."""
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        tensor = ctx.ones(4, dtype=name).cpu()
        with pytest.raises(BufferError, match=f"{name}(.|\\n)*view"):
            np.from_dlpack(tensor)
        assert not hasattr(tensor, "__array_interface__")
        bits = getattr(simrank, f"uint{8 * tensor.itemsize}")
        back = ctx.from_dlpack(np.from_dlpack(tensor.view(bits))).view(tensor.dtype)
        assert back.tolist() == [1.0] * 4


def test_what_cannot_be_shared_is_copied_or_refused(ctx):
    """Read-only and strided memory, another device, and `copy=True`."""
    values = np.arange(6.0)
    fixed = values.copy()
    fixed.flags.writeable = False
    for source in (fixed, values[::2], values[::-1]):
        assert ctx.from_dlpack(source).tolist() == source.tolist()
        with pytest.raises(BufferError, match="copy=False"):
            ctx.from_dlpack(source, copy=False)
    assert not np.shares_memory(ctx.from_dlpack(values, copy=True).numpy(), values)
    on_device = ctx.from_dlpack(values, device="cuda:1")
    assert (on_device.get_device(), on_device.tolist()) == (1, values.tolist())
    with pytest.raises(BufferError, match="copy=False"):
        ctx.from_dlpack(values, device="cuda", copy=False)


def test_a_tensor_of_simrank_is_taken_where_it_is(ctx):
    """On its device, without a wait: another object on the same memory."""
    tensor = ctx.zeros(4)
    same = ctx.from_dlpack(tensor)
    assert same is not tensor
    assert same.data_ptr() == tensor.data_ptr()
    tensor.fill_(2)
    assert same.tolist() == [2] * 4
    assert ctx.from_dlpack(tensor, copy=True).data_ptr() != tensor.data_ptr()
    with pytest.raises(BufferError, match="copy=False"):
        ctx.from_dlpack(tensor, device="cpu", copy=False)


class OfADevice:
    """Stands for memory of another library's GPU."""

    def __dlpack_device__(self):
        """Return CUDA's first device."""
        return (2, 0)

    def __dlpack__(self):
        """Fail: nobody may ask."""
        raise AssertionError("a simulation cannot read there")


class Described:
    """Has numpy's array interface, and nothing else."""

    def __init__(self, values):
        self.values = values
        self.__array_interface__ = values.__array_interface__


def test_memory_of_other_devices_is_refused_by_name(ctx):
    """A real GPU's is not the simulation's."""
    with pytest.raises(UnsupportedError, match="OfADevice on device"):
        ctx.from_dlpack(OfADevice())


def test_whatever_has_the_array_interface_becomes_a_tensor_of_its_own_type(ctx):
    """Its float64 stays float64, as an array's does."""
    tensor = ctx.as_tensor(Described(np.array([0.1, 0.2])), device="cpu")
    assert (tensor.dtype.name, tensor.tolist()) == ("float64", [0.1, 0.2])


def test_torch_shares_host_memory_with_it_both_ways(ctx):
    """On the CPU, of which torch knows more types than numpy."""
    torch = pytest.importorskip("torch")
    theirs = torch.arange(4, dtype=torch.int32)
    ours = ctx.from_dlpack(theirs)
    ours.add_(1)
    assert theirs.tolist() == [1, 2, 3, 4]
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == theirs.data_ptr()
    with pytest.raises(UnsupportedError, match="export the bits"):
        ctx.from_dlpack(torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(BufferError, match="simulated device"):
        torch.from_dlpack(ctx.ones(2))
