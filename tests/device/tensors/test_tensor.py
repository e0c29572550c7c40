"""Tensors: views, stream-ordered writes, the closed list of host reads."""

import pickle

import numpy as np
import pytest

from simrank.device.tensors.methods import TensorMethods
from simrank.device.tensors.tensor import HOST_READS, Tensor, _registered
from simrank.errors import UnsupportedError


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
    "__array_interface__": lambda x: x.to("cpu", non_blocking=True).__array_interface__,
    "__dlpack__": lambda x: x.__dlpack__(dl_device=(1, 0)),
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
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "__getitem__": lambda x: x[x > 0],
}


@pytest.mark.parametrize("name", HOST_READS)
def test_a_host_read_waits_for_what_still_writes_the_tensor(run, name):
    """Every entry of the closed list is a barrier (D4)."""

    def program(_, ctx):
        x = ctx.ones(2)
        READS[name](x)
        assert x.array[0] == 1
        assert ctx.now_ps > 0

    run(program, 1, races="off")  # A copy that is not waited for is a race on a GPU.


def test_the_list_of_host_reads_is_closed():
    """What is registered is listed, and every listed name has a test above."""
    assert set(_registered) <= set(HOST_READS)
    assert set(READS) == set(HOST_READS)


def calls(x, mask, index):
    """Return arguments of the methods that take some; None for what is checked elsewhere."""
    row, one = x[0], {"self": (x,)}
    by_arguments = {
        (): "add_ add sub mul div pow maximum minimum floor_divide remainder eq ne lt le gt ge "
        "subtract multiply divide true_divide isclose outer mm bmm",
        (0,): "unsqueeze cumsum cumprod softmax log_softmax logsumexp size "
        "flip roll fill_ clip clamp clamp_ stride",
        (0, 0): "select transpose swapaxes swapdims movedim",
        (1,): "split chunk tensor_split repeat_interleave",
        (0, 0, 1): "narrow",
        (2, 2): "view reshape expand broadcast_to repeat new_empty new_zeros new_ones",
    }
    found = {
        name: given for given, names in by_arguments.items() if given for name in names.split()
    }
    found |= dict.fromkeys(by_arguments[()].split(), (x,)) | one
    found |= dict.fromkeys(
        (
            "bitwise_xor",
            "logical_and",
            "logical_or",
            "logical_xor",
            "bitwise_and",
            "bitwise_or",
            "expand_as",
            "view_as",
        ),
        (mask,),
    )
    return found | {
        "unflatten": (0, (2, 1)), "permute": (1, 0), "mv": (row,), "dot": None, "addmm": (x, x),
        "matmul": (x,), "gather": (0, index), "index_select": (0, index[0]), "where": (mask, 0),
        "scatter_": (0, index, x), "scatter_add_": (0, index, x), "bmm": None, "type_as": (x,),
        "index_add_": (0, index[0], x), "masked_fill": (mask, 1), "masked_fill_": (mask, 1),
        "lerp": (x, 0.5), "lerp_": (x, 0.5), "addcmul": (x, x), "addcmul_": (x, x),
        "addcdiv": (x, x), "addcdiv_": (x, x), "topk": (1,), "new_full": ((2,), 1),
        "new_tensor": ([1.0],), "__getitem__": (0,), "__setitem__": (mask, 1.0), "outer": None,
        "add_": (x,), "sub_": (x,), "mul_": (x,), "div_": (x,), "pow_": (2,), "bitwise_and_": None,
        "bitwise_or_": None, "wait_values": None,
        "wait_writers": None, "requires_grad_": None, "backward": None,
        "retain_grad": None, "register_hook": None, "record_stream": None,
    }  # fmt: skip


def test_no_other_public_method_reads_values(run):
    """Every public method outside the list, called, leaves the clock at zero."""
    plain = set(dir(object)) | set(HOST_READS)
    names = [n for n in dir(Tensor) if n not in plain and n[:1] != "_"]
    kinds = ["add", "sub", "mul", "truediv", "eq", "ne", "lt", "le", "gt", "ge", "matmul"]
    operators = [f"__{side}{kind}__" for kind in kinds for side in ("", "r", "i")]
    operators = [name for name in operators if name in vars(TensorMethods)]

    def program(_, ctx):
        given = calls(ctx.ones(2, 2), ctx.ones(2, 2) > 0, ctx.zeros(2, 2, dtype=ctx.int64))
        given |= dict.fromkeys(operators, (2.0,)) | {"__matmul__": (ctx.ones(2, 2),)}
        for name in (*names, *operators, "__getitem__", "__setitem__", "__len__"):
            logical = name.startswith("bitwise")
            x = (ctx.ones(2, 2) > 0) if logical else ctx.ones(2, 2)
            arguments = given.get(name, ())
            if arguments is not None and callable(method := getattr(x, name)):
                method(*arguments)
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


def test_what_torch_would_take_in_another_way_is_refused_by_name(ctx):
    """A uint8 index (a mask in torch, deprecated), Python bools, autograd."""
    x = ctx.ones(4)
    with pytest.raises(UnsupportedError, match="uint8 tensor is a mask in torch"):
        x[ctx.ones(4, dtype=ctx.uint8)]
    with pytest.raises(UnsupportedError, match="Python bool"):
        x[True]
    with pytest.raises(UnsupportedError, match="requires_grad_ is not supported"):
        x.requires_grad_()
    with pytest.raises(UnsupportedError, match=r"zeros\(requires_grad=True\)"):
        ctx.zeros(2, requires_grad=True)


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


def test_record_stream_takes_a_stream_of_the_tensor_s_device(ctx):
    """It exists, as in torch; operations keep what they use alive here anyway."""
    x = ctx.ones(4)
    x.record_stream(ctx.Stream())
    with pytest.raises(RuntimeError, match="the tensor is on"):
        x.record_stream(ctx.Stream("cuda:1"))
    with pytest.raises(RuntimeError, match="on a device"):
        ctx.ones(4, device="cpu").record_stream(ctx.Stream())
