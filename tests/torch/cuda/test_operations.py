"""The record of operations has what a roofline needs."""

from __future__ import annotations

import threading

import pytest
import torch

from simrank.torch import cuda as simulated
from simrank.torch.cuda import operations
from simrank.torch.cuda.operations import OperationFlag, pending_add, pending_remove


def test_shapes_dtypes_addresses_and_streams(recorded):
    """Inputs with strides, outputs with addresses, the flag of what is written."""
    a = torch.empty(2, 3, device="cuda:1", dtype=torch.bfloat16)
    b = torch.empty(4, 3, device="cuda:1", dtype=torch.bfloat16)
    recorded()
    c = a @ b.t()
    c.add_(1)
    mm, add = recorded()
    assert (mm.name, mm.rank, mm.device, mm.stream) == ("mm", 0, 1, 0)
    assert [operand.sizes for operand in mm.inputs] == [(2, 3), (3, 4)]
    assert mm.inputs[1].strides == (1, 3)
    assert mm.outputs[0].address == c.data_ptr()
    assert mm.outputs[0].sizes == (2, 4)
    assert add.inputs[0].is_written
    assert add.outputs == ()


def test_copies_say_where_they_go(recorded):
    """Across the bus, and whether the host waits."""
    x = torch.ones(4).cuda()
    x.cpu()
    x.to("cpu", non_blocking=True)
    x.to("cuda:1")
    flags = OperationFlag
    assert [op.flags for op in recorded()] == [
        flags.HOST_TO_DEVICE | flags.BLOCKING,
        flags.DEVICE_TO_HOST | flags.BLOCKING,
        flags.DEVICE_TO_HOST,
        flags(0),
    ]


def test_views_are_no_operations(recorded):
    """What launches nothing is not recorded."""
    x = torch.ones(4, 4, device="cuda")
    recorded()
    x.t().view(4, 4)[1:].unfold(0, 2, 1).unsqueeze(0).view(torch.int32)
    assert recorded() == []


# ---- listeners: ranges in flight, operations, and what listeners raise ----


class _Aborted(SystemExit):
    """What a simulator throws into a rank."""


@pytest.fixture
def waits():
    """Devices whose pending ranges end when somebody waits for them; the waits that were."""
    seen = []

    def on_pending(address, size, is_write, pending_id):
        seen.append((address, size, is_write, pending_id))
        pending_remove(pending_id)

    with simulated.standalone(2, callbacks=simulated.Callbacks(on_pending=on_pending)):
        yield seen


def test_a_reader_waits_for_a_writer_only(waits):
    """Reads of what is read go on; reads of what is written, and writes of either, wait."""
    x = torch.ones(8, device="cuda")
    address = x.data_ptr()
    pending_add(address, 32, writes=False, pending_id=1)
    assert (x + 1).sum().item() == 16
    assert waits == []
    x.add_(1)
    assert waits == [(address, 32, True, 1)]
    pending_add(address, 32, writes=True, pending_id=2)
    x.sum()
    assert waits[1:] == [(address, 32, False, 2)]


def test_only_what_overlaps_waits(waits):
    """A view of the other half of a storage does not wait; other tensors do not either."""
    x, other = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")
    pending_add(x.data_ptr() + 16, 16, writes=True, pending_id=1)
    x[:4].add_(1)
    other.add_(1)
    assert waits == []
    x[::2].sum()
    assert [wait[3] for wait in waits] == [1]


@pytest.mark.parametrize(
    "read", [lambda x: x.item(), lambda x: x.cpu(), lambda x: x.tolist(), lambda x: x.to("cuda:1")]
)
def test_host_reads_and_copies_wait(waits, read):
    """Whatever brings values away."""
    x = torch.ones((), device="cuda")
    pending_add(x.data_ptr(), 4, writes=True, pending_id=3)
    read(x)
    assert [wait[3] for wait in waits] == [3]


def test_views_do_not_wait(waits):
    """Slices and shapes touch no values."""
    x = torch.ones(8, device="cuda")
    pending_add(x.data_ptr(), 32, writes=True, pending_id=4)
    x[2:].view(2, 3).t().data_ptr()
    assert waits == []
    pending_remove(4)


def test_what_a_listener_raises_leaves_the_call():
    """The very exception object, also out of backward and out of a graph's replay."""
    raised = _Aborted("rank 3 failed")

    def on_pending(*_):
        raise raised

    with simulated.standalone(1, callbacks=simulated.Callbacks(on_pending=on_pending)):
        x = torch.ones(4, device="cuda", requires_grad=True)
        gradient = torch.ones(4, device="cuda")
        y = x.sin()
        pending_add(gradient.data_ptr(), 16, writes=True, pending_id=1)
        for call in (lambda: gradient + 1, lambda: y.backward(gradient), gradient.tolist):
            with pytest.raises(_Aborted) as caught:
                call()
            assert caught.value is raised
        pending_remove(1)
        assert (gradient + 1).tolist() == [2, 2, 2, 2]


def test_a_listener_may_block_inside_backward():
    """Another rank runs its own backward to the end meanwhile."""
    waiting, finished = threading.Event(), threading.Event()

    def on_pending(_address, _size, _is_write, pending_id):
        waiting.set()
        assert finished.wait(30)
        pending_remove(pending_id)

    gradients = {}

    def first(state):
        state.bind()
        x, gradient = (torch.ones(4, device="cuda") for _ in range(2))
        x.requires_grad_()
        pending_add(gradient.data_ptr(), 16, writes=True, pending_id=1)
        x.exp().backward(gradient)
        gradients[0] = x.grad.sum().item()
        simulated.unbind()

    def second(state):
        assert waiting.wait(30)
        state.bind()
        x = torch.ones(4, device="cuda:1", requires_grad=True)
        (x * 3).sum().backward()
        gradients[1] = x.grad.sum().item()
        simulated.unbind()
        finished.set()

    simulated.enable(2, callbacks=simulated.Callbacks(on_pending=on_pending))
    states = [simulated.RankState(rank, first_device=0, num_devices=2) for rank in range(2)]
    threads = [
        threading.Thread(target=program, args=(state,))
        for program, state in zip((first, second), states, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    simulated.disable()
    for state in states:
        state.free()
    assert gradients == {0: pytest.approx(4 * 2.71828, abs=1e-4), 1: 12.0}


def test_operations_are_handed_over_as_they_are_launched():
    """`on_op` gets each operation, which need not be drained."""
    heard = []
    callbacks = simulated.Callbacks(on_op=lambda words: heard.extend(operations.decode(words)))
    with simulated.standalone(1, callbacks=callbacks), operations.recording() as drain:
        x = torch.ones(2, 3, device="cuda")
        x @ x.t()
        assert drain() == []
    assert [op.name for op in heard] == ["fill_.Scalar", "mm"]
    assert [operand.sizes for operand in heard[1].inputs] == [(2, 3), (3, 2)]


def test_an_exception_survives_memory_that_dies_with_it():
    """Torch frees memory while an exception passes; a listener runs meanwhile."""
    freed = []

    def on_free(*reported):
        freed.append({}.get(reported))

    with simulated.standalone(callbacks=simulated.Callbacks(on_free=on_free)):
        x = torch.ones(8, 8, device="cuda")
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
            (x + 1).mm(x[:5])
        assert freed


# ---- ranges in flight are kept by id ----


def test_an_id_may_have_several_ranges():
    """Removing it removes all of them, and no others; the newest is waited for first."""
    seen = []
    callbacks = simulated.Callbacks(on_pending=lambda *wait: seen.append(wait[3]))
    with simulated.standalone(1, callbacks=callbacks):
        x, y = (torch.ones(4, device="cuda") for _ in range(2))
        simulated.pending_add(x.data_ptr(), 16, writes=True, pending_id=1)
        simulated.pending_add(y.data_ptr(), 16, writes=True, pending_id=1)
        simulated.pending_add(y.data_ptr(), 16, writes=True, pending_id=2)
        x + y
        assert seen == [1, 2, 1]
        simulated.pending_remove(1)
        x + y
        assert seen == [1, 2, 1, 2]
        simulated.pending_remove(2)
        x + y
        assert len(seen) == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_a_half_type_are_rounded_once_without_memory_of_their_own(cuda, dtype):
    """Those of many multiplications per element take fp32's kernels, which are faster."""
    torch.manual_seed(0)
    a, b, c = (torch.randn(2, 64, 64, device="cuda", dtype=dtype) for _ in range(3))
    out = torch.empty_like(c)
    products = {
        "rows": lambda x, y, z: x[0] @ y[0],
        "columns": lambda x, y, z: x[0] @ y[0].t(),
        "both": lambda x, y, z: x[0].t() @ y[0],
        "with a sum": lambda x, y, z: torch.addmm(z[0], x[0], y[0], beta=0.5),
        "several": lambda x, y, z: x @ y,
        "several with a sum": lambda x, y, z: torch.baddbmm(z, x, y),
    }
    for name, product in products.items():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = product(a, b, c)
        assert torch.cuda.max_memory_allocated() == before + found.nbytes, name
        wide = product(*(each.cpu().float() for each in (a, b, c))).to(dtype)
        assert found.dtype == dtype
        torch.testing.assert_close(found.cpu(), wide, rtol=torch.finfo(dtype).eps, atol=1e-3)
    torch.bmm(a, b, out=out)
    assert torch.equal(out, a @ b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = a @ b
    a.copy_(c)
    graph.replay()
    assert torch.equal(captured, c @ b)


def test_norms_of_permuted_rows_return_strides_as_cudas_do(cuda):
    """CUDA's kernels write rows one behind the other; batch norms keep the input's strides."""
    x = torch.randn(4, 2, 8, device="cuda").movedim(0, 1)
    weight = torch.ones(8, device="cuda")
    assert torch.nn.functional.rms_norm(x, (8,), weight).is_contiguous()
    assert torch.nn.functional.layer_norm(x, (8,), weight).is_contiguous()
    mean, variance = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
    normed = torch.nn.functional.batch_norm(x, mean, variance, training=True)
    assert normed.stride() == x.stride()
