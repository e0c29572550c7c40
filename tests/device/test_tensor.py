"""Tensors: views, stream-ordered writes, the closed list of host reads."""

import pickle

import numpy as np
import pytest

from simrank.device.tensor import HOST_READS, Tensor, _registered
from simrank.errors import UnsupportedError


def test_views_share_storage(ctx):
    """Slices, views, transposes, chunks and narrow see writes through one another."""
    x = ctx.arange(12).view(3, 4)
    assert x.transpose(0, 1)[1].tolist() == [1, 5, 9]
    x[1].fill_(0)
    assert x.view(-1).tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 8, 9, 10, 11]
    assert [part.tolist() for part in x.chunk(2)] == [
        [[0, 1, 2, 3], [0, 0, 0, 0]],
        [[8, 9, 10, 11]],
    ]
    assert x.narrow(1, 1, 2)[0].tolist() == [1, 2]
    assert [part.shape for part in x.split([1, 2])] == [(1, 4), (2, 4)]
    assert x[2, 3].item() == 11


def test_view_of_a_transposed_tensor_is_torchs_error_and_reshape_copies(ctx):
    """View never copies, reshape may."""
    x = ctx.arange(6).view(2, 3).t()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.view(6)
    assert x.reshape(6).tolist() == [0, 3, 1, 4, 2, 5]
    with pytest.raises(RuntimeError, match="invalid for input of size 6"):
        x.reshape(4)


def test_metadata_never_waits(run):
    """Shape, dtype, views and further operations do not block the host."""

    def program(_, ctx):
        x = ctx.ones((2, 3))
        y = (x + 1).t().contiguous()
        assert (y.shape, y.dim(), y.numel(), y.stride()) == ((3, 2), 2, 6, (2, 1))
        assert x.is_cuda
        assert ctx.now_ps == 0

    run(program, 1)


READS = {
    "numpy": lambda x: x.numpy(),
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "__array__": np.asarray,
    "__bool__": lambda x: bool(x[0]),
    "__int__": lambda x: int(x[0]),
    "__float__": lambda x: float(x[0]),
    "__index__": lambda x: [5, 6][x.to("int64")[0]],
    "__repr__": repr,
    "__format__": lambda x: f"{x[0]:.3f}",
    "equal": lambda x: x.equal(x),
    "allclose": lambda x: x.allclose(x),
    "__reduce__": pickle.dumps,
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "copy_": lambda x: x.cpu().copy_(x),
}


@pytest.mark.parametrize("name", HOST_READS)
def test_a_host_read_waits_for_what_still_writes_the_tensor(run, name):
    """Every entry of the closed list is a barrier (D4)."""

    def program(_, ctx):
        x = ctx.ones(2)
        READS[name](x)
        assert x.array[0] == 1
        assert ctx.now_ps > 0

    run(program, 1)


def test_the_list_of_host_reads_is_closed():
    """What is registered is listed, and every listed name has a test above."""
    assert set(_registered) <= set(HOST_READS)
    assert set(READS) == set(HOST_READS)


def test_no_other_public_method_reads_values(run):
    """Every public method outside the list leaves the clock at zero."""
    arguments = {
        "size": (), "view": (2, 2), "reshape": (2, 2), "transpose": (0, 0), "unsqueeze": (0,),
        "narrow": (0, 0, 1), "split": (2,), "chunk": (2,), "unbind": (), "__getitem__": (0,),
        "squeeze": (), "fill_": (3,), "cuda": (), "sum": (), "mean": (), "max": (), "min": (),
        "wait_values": None, "__setitem__": (0, 1.0), "matmul": ("self",), "__matmul__": ("self",),
        "__class__": None, "__init__": None,
    }  # fmt: skip
    binary = {name for name in dir(Tensor) if name.strip("_i").strip("_") in
              {"add", "sub", "mul", "div", "truediv", "pow", "maximum", "minimum", "radd", "rsub",
               "rmul", "rtruediv", "eq", "ne", "lt", "le", "gt", "ge", "isub", "imul", "iadd",
               "itruediv"}}  # fmt: skip
    plain = set(dir(object)) - binary
    names = [n for n in dir(Tensor) if n not in HOST_READS and n not in plain and n[:1] != "_"]
    names += [n for n in binary if n.startswith("__")] + ["__getitem__", "__setitem__", "__len__"]

    def program(_, ctx):
        for name in names:
            if arguments.get(name, ()) is None:
                continue
            x = ctx.ones(4)
            method = getattr(x, name)
            if not callable(method):
                continue
            given = (2.0,) if name in binary else arguments.get(name, ())
            method(*(x if argument == "self" else argument for argument in given))
            assert ctx.now_ps == 0, f"{name} waited"

    run(program, 1)


def test_a_host_read_waits_for_nothing_else(run):
    """Reading one tensor does not wait for a long kernel on another."""

    def program(_, ctx):
        small, large = ctx.ones(2), ctx.empty(2**28)
        with ctx.stream(ctx.Stream()):
            large.fill_(1)
        assert small.tolist() == [1, 1]
        assert ctx.now_ps < 300_000_000

    run(program, 1, data=False)


def test_the_target_of_a_copy_is_no_barrier(run):
    """copy_ into a tensor that is still written does not block the host (D4)."""

    def program(_, ctx):
        x = ctx.ones(4)
        x.copy_(ctx.zeros(4))
        assert ctx.now_ps == 0
        assert x.tolist() == [0] * 4

    run(program, 1)


def test_numpy_of_a_device_tensor_is_a_copy(ctx):
    """Changing the array does not change the device."""
    x = ctx.ones(2)
    x.numpy()[0] = 5
    assert x.tolist() == [1, 1]


def test_from_numpy_copies_in(ctx):
    """Changing the source afterwards does not change the tensor."""
    values = np.ones(3, np.float32)
    x = ctx.from_numpy(values)
    values[0] = 9
    assert x.tolist() == [1, 1, 1]


def test_indexing_with_a_mask_is_refused_by_name(ctx):
    """What is not supported says so."""
    with pytest.raises(UnsupportedError, match="mask"):
        ctx.ones(4)[[True, False, True, False]]


def test_a_pickled_tensor_comes_back_on_the_host(ctx):
    """Values and dtype survive."""
    back = pickle.loads(pickle.dumps(ctx.ones(2, dtype="bfloat16")))
    assert back.device == "cpu"
    assert back.dtype.name == "bfloat16"
    assert back.tolist() == [1, 1]


def test_item_of_several_elements_is_torchs_error(ctx):
    """The message is torch's."""
    with pytest.raises(RuntimeError, match="4 elements cannot be converted to Scalar"):
        ctx.ones(4).item()
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(ctx.ones(4))


def test_a_tensor_formats_as_a_number_and_copies_onto_its_device(ctx):
    """f-strings, copy and deepcopy, as with torch."""
    import copy

    x = ctx.ones(2, device=3)
    assert f"{x[0]:.2f} {x.sum():>6.1f}" == "1.00    2.0"
    deep = copy.deepcopy(x)
    x.fill_(5)
    assert deep.device.index == 3
    assert deep.tolist() == [1, 1]
    shallow = copy.copy(x)
    shallow[0] = 9
    assert x.tolist() == [9, 5]


def test_a_host_read_waits_only_for_what_overlaps(run):
    """Reading one half does not wait for a long copy into the other (D4)."""

    def program(_, ctx):
        x = ctx.zeros(2**25)
        ctx.synchronize()
        start = ctx.now_ps
        with ctx.stream(ctx.Stream()):
            x[2**24 :].copy_(ctx.ones(2**24, device=1))
        assert x[0].item() == 0
        assert ctx.now_ps - start < 100_000_000

    run(program, 1)
