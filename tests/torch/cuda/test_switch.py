"""Devices are switched on and off, and every thread sees those of its rank."""

from __future__ import annotations

import _thread
import ctypes
import gc
import importlib
import subprocess
import sys
import threading
from types import ModuleType

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from simrank.errors import UnsupportedError
from simrank.isolation.ledger import ABSENT, Ledger
from simrank.torch import cuda as simulated
from simrank.torch.cuda.switch import CALLED, REPLACED, Layout, replace_everywhere

GIB = 1 << 30


def _private_state():
    modules = (torch._C, torch.cuda, torch.cuda.streams, torch.cuda.graphs, torch.version)
    return [dict(vars(module)) for module in modules] + [dict(vars(torch.UntypedStorage))]


def test_disable_puts_torch_back_exactly():
    """Every attribute that `enable` replaced is what it was, and absent ones are absent."""
    torch.cuda.is_available()
    before = _private_state()
    with simulated.standalone(2):
        assert _private_state() != before
    assert _private_state() == before


def test_without_a_rank_no_device_is_visible():
    """A thread that carries no rank is refused as in a CPU build of torch."""
    simulated.enable(2)
    try:
        assert torch.cuda.device_count() == 0
        assert not torch.cuda.is_available()
        with pytest.raises(AssertionError, match="Torch not compiled with CUDA enabled"):
            torch.ones(3, device="cuda")
    finally:
        simulated.disable()
    # Afterwards, as its own build says.
    with pytest.raises((AssertionError, RuntimeError), match=r"with CUDA|NVIDIA driver"):
        torch.ones(3, device="cuda")


def test_nothing_of_a_simulation_reaches_the_next():
    """Ranges in flight, records, limits and raw allocations end with it."""
    waits = []
    callbacks = simulated.Callbacks(on_pending=lambda *wait: waits.append(wait))
    with simulated.standalone(1, callbacks=callbacks):
        x = torch.ones(4, device="cuda")
        simulated.pending_add(x.data_ptr(), 16, writes=True, pending_id=1)
        simulated.start_recording()
        x + 1
        torch.cuda.caching_allocator_alloc(100)
        torch.cuda.set_per_process_memory_fraction(0.5)
        del x
    assert len(waits) == 1
    with simulated.standalone(1, callbacks=callbacks):
        torch.ones(4, device="cuda") + 1
        assert simulated.drain_words() == []
        assert torch.cuda.memory_reserved() == 2 << 20
        assert torch.cuda.get_per_process_memory_fraction() == 1.0
    assert len(waits) == 1


def test_fake_tensors_leave_the_devices_in_place():
    """Where it sees no devices, torch puts a guard of its own there."""
    with simulated.standalone(1), FakeTensorMode():
        assert torch.ones(2, device="cuda").device.type == "cuda"
    fake = threading.Thread(target=FakeTensorMode().__enter__)
    simulated.enable(1)
    fake.start()
    fake.join()
    simulated.disable()
    with FakeTensorMode():
        assert torch.empty(2, device="cuda").device.type == "cuda"
    with simulated.standalone(1):
        torch.ones(2, device="cuda").sum()
        torch.cuda.synchronize()
        assert torch.cuda.Stream().cuda_stream != 0


def test_real_devices_are_not_hidden_unless_asked(monkeypatch):
    """Where torch sees GPUs, simulated ones are refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UnsupportedError, match="real CUDA devices"):
        simulated.enable(1)
    simulated.enable(1, replace_real_devices=True)
    simulated.disable()


def test_a_rank_that_is_still_carried_sees_nothing_after_the_end():
    """Its tensors live on, but cannot be computed with."""
    simulated.enable(1)
    state = simulated.RankState(0, first_device=0, num_devices=1)
    state.bind()
    x = torch.ones(3, device="cuda")
    simulated.disable()
    try:
        with pytest.raises(AssertionError, match="Torch not compiled with CUDA enabled"):
            x + 1
    finally:
        simulated.unbind()
        state.free()


def test_enabling_twice_is_refused(cuda):
    """There is one set of devices at a time."""
    with pytest.raises(RuntimeError, match="enabled already"):
        simulated.enable(1)


def test_addresses_tell_the_device_and_do_not_depend_on_the_run():
    """Device g's memory begins at base + g * span, and the same calls give the same addresses."""
    runs = []
    for _ in range(2):
        with simulated.standalone(3):
            runs.append([torch.ones(5, device=f"cuda:{index}").data_ptr() for index in range(3)])
    first, span = runs[0][0], Layout(3, 80 * GIB).span
    assert first >= 1 << 44  # Behind tensors of earlier tests, where some are alive.
    assert runs[0] == runs[1] == [first + index * span for index in range(3)]


_FULL = """
import torch
from simrank.torch import cuda as simulated

GIB = 1 << 30
for num_devices, memory_gib in ((256, 80), (1000, 64), (1000, 80)):
    properties = simulated.DeviceProperties(total_memory=memory_gib * GIB)
    layout = simulated.enable(num_devices, properties)
    state = simulated.RankState(0, first_device=num_devices - 8, num_devices=8)
    state.bind()
    last = torch.ones(3, device="cuda:7")
    assert last.data_ptr() == layout.base + (num_devices - 1) * layout.span < 1 << 47
    assert last.sum().item() == 3
    del last
    simulated.unbind()
    simulated.disable()
    state.free()
"""


def test_many_devices_fit_into_47_bits():
    """256 devices of 80 GiB and 1,000 of 64 GiB have addresses, where no tensor is alive."""
    subprocess.run([sys.executable, "-c", _FULL], check=True)


def test_a_layout_that_does_not_fit_is_refused():
    """Devices beyond the address space are refused before anything changes."""
    with pytest.raises(ValueError, match="does not fit"):
        simulated.enable(10_000)
    assert not simulated.is_enabled()


def test_live_tensors_keep_their_place():
    """Memory of an earlier simulation is not touched while tensors hold it; then it is free."""
    with simulated.standalone(1):
        kept = torch.ones(3, device="cuda")
    address = kept.data_ptr()
    with simulated.standalone(2):
        other = torch.full((3,), 7.0, device="cuda")
        assert other.data_ptr() > address
    assert (ctypes.c_float * 3).from_address(address)[:] == [1, 1, 1]
    del kept, other
    with simulated.standalone(2):
        assert torch.ones(3, device="cuda").data_ptr() == address


def test_garbage_is_looked_for_once_after_a_simulation_that_left_tensors(monkeypatch):
    """Tensors that live on make one collection necessary, not one per simulation after it."""
    with simulated.standalone(1):  # What tests before this one left is none of its business.
        pass
    collections = []
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda *args: collections.append(args) or collect(*args))
    with simulated.standalone(1):
        kept = torch.ones(3, device="cuda")
    for _ in range(3):
        with simulated.standalone(1):
            assert torch.ones(3, device="cuda").data_ptr() != kept.data_ptr()
    assert len(collections) == 1


def test_queries(cuda):
    """Counts, names, capabilities and properties are those of the devices."""
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 4
    assert torch.cuda.current_device() == 0
    properties = torch.cuda.get_device_properties(0)
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == (9, 0)
    assert torch.cuda.get_device_name(2) == "NVIDIA H100 80GB HBM3"
    assert torch.cuda.is_bf16_supported()
    assert torch.version.cuda
    assert torch.backends.cuda.is_built()
    assert torch.cuda.mem_get_info()[1] == properties.total_memory
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(4)


def test_current_device(cuda):
    """set_device, `with device`, device_of; an index out of range is CUDA's error."""
    torch.cuda.set_device(3)
    assert torch.cuda.current_device() == 3
    torch.cuda.set_device("cuda:1")
    assert torch.cuda.current_device() == 1
    with torch.cuda.device(2):
        assert torch.empty(1, device="cuda").device.index == 2
    with torch.cuda.device_of(torch.ones(1, device="cuda:3")):
        assert torch.cuda.current_device() == 3
    assert torch.cuda.current_device() == 1
    for call in (lambda: torch.empty(1, device="cuda:7"), lambda: torch.cuda.set_device(9)):
        with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid device ordinal"):
            call()


def test_accelerator(cuda):
    """torch.accelerator is about the same devices."""
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "cuda"
    assert torch.accelerator.device_count() == 4
    torch.accelerator.set_device_index(2)
    assert torch.cuda.current_device() == torch.accelerator.current_device_index() == 2
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream().device == torch.device("cuda:2")
    assert torch.get_device_module("cuda") is torch.cuda
    assert torch.accelerator.memory_allocated() == 0


def test_default_device(cuda):
    """A default device holds for factories and modules."""
    with torch.device("cuda:1"):
        assert torch.ones(2).device == torch.device("cuda:1")
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
    finally:
        torch.set_default_device(None)
    assert not torch.ones(1).is_cuda


class Baton:
    """Threads that take turns: exactly one runs, and which is next is said aloud."""

    def __init__(self, count):
        self.locks = [_thread.allocate_lock() for _ in range(count)]
        for lock in self.locks[1:]:
            lock.acquire()
        self.locks[0].acquire()
        self.order = []

    def pass_on(self, me):
        """Let the next thread run, and wait for the turn."""
        self.order.append(me)
        self.locks[(me + 1) % len(self.locks)].release()
        self.locks[me].acquire()


def _in_lockstep(count, program, devices_of=lambda _rank: (0, 4)):
    baton, results, errors = Baton(count), {}, []

    def carry(rank):
        first, number = devices_of(rank)
        state = simulated.RankState(rank, first_device=first, num_devices=number)
        baton.locks[rank].acquire()
        try:
            state.bind()
            results[rank] = program(rank, lambda: baton.pass_on(rank))
        except BaseException as error:  # noqa: BLE001 - it is shown at the end.
            errors.append(error)
        finally:
            simulated.unbind()
            state.free()
            baton.locks[(rank + 1) % count].release()

    threads = [threading.Thread(target=carry, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    baton.locks[0].release()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors, errors
    return results, baton.order


@pytest.fixture
def devices():
    simulated.enable(8)
    yield
    simulated.disable()


def test_four_ranks_interleave_inside_backward(devices):
    """Each has its own current device, and its gradients are computed on its own thread."""

    def program(rank, pass_on):
        torch.cuda.set_device(rank)
        seen = []

        def hook(gradient):
            seen.append((_thread.get_ident(), torch.cuda.current_device()))
            pass_on()  # Others run their backward inside this one.
            return gradient * 2

        x = torch.full((8,), float(rank + 1), device="cuda", requires_grad=True)
        pass_on()
        y = x * x
        y.register_hook(hook)
        y.sum().backward()
        pass_on()
        assert seen == [(_thread.get_ident(), rank)]
        return x.grad[0].item(), x.device.index, torch.cuda.current_device()

    results, order = _in_lockstep(4, program)
    assert results == {rank: (4.0 * (rank + 1), rank, rank) for rank in range(4)}
    assert order == [0, 1, 2, 3] * 3


def test_ranks_have_their_own_generators_and_streams(devices):
    """Seeds, offsets and current streams of one rank are not another's."""

    def program(rank, pass_on):
        torch.cuda.manual_seed(rank)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            pass_on()
            drawn = torch.rand(2, device="cuda").tolist()
            assert torch.cuda.current_stream() == stream
        pass_on()
        return drawn, torch.cuda.initial_seed(), stream.cuda_stream

    results, _ = _in_lockstep(3, program)
    assert [results[rank][1:] for rank in range(3)] == [(rank, 1) for rank in range(3)]
    assert len({tuple(results[rank][0]) for rank in range(3)}) == 3


def test_ranks_of_two_nodes_have_the_same_names_for_other_devices(devices):
    """cuda:0 of a rank of node 1 is global device 4, by its address."""

    def program(rank, pass_on):
        x = torch.ones(2, device="cuda:0")
        pass_on()
        return x.data_ptr()

    results, _ = _in_lockstep(2, program, devices_of=lambda rank: (4 * rank, 4))
    assert results[1] - results[0] == 4 * Layout(8, 80 * GIB).span


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_native_threads_inherit_the_rank(devices):
    """What torch runs on a thread of its own belongs to the rank that asked."""

    @torch.jit.script
    def double(x):
        return x * 2

    def program(rank, pass_on):
        torch.cuda.set_device(rank)
        result = torch.jit.wait(torch.jit.fork(double, torch.ones(3, device="cuda")))
        return result.device.index, result.sum().item()

    results, _ = _in_lockstep(2, program)
    assert results == {0: (0, 6.0), 1: (1, 6.0)}


# ---- what devices say of themselves ----


def test_properties_are_the_callers():
    """Name, memory and processors are those that were given, and count for random numbers."""
    properties = simulated.DeviceProperties(
        name="NVIDIA A100", major=8, minor=0, total_memory=40 << 30, multi_processor_count=108
    )
    with simulated.standalone(1, properties=properties):
        assert torch.cuda.get_device_name() == "NVIDIA A100"
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.mem_get_info()[1] == 40 << 30
        shown = repr(torch.cuda.get_device_properties(0))
        assert "total_memory=40960MB, multi_processor_count=108" in shown
        assert properties.gcnArchName == "NVIDIA A100"
        threads = 108 * 8 * 256
        generator = torch.cuda.default_generators[0]
        generator.set_offset(0)
        torch.rand(4 * threads + 1, device="cuda")
        assert generator.get_offset() == 8


# ---- the private names of torch that are needed exist in the installed version ----


@pytest.mark.parametrize(("module", "name"), REPLACED + CALLED)
def test_it_exists(module, name):
    """A name that torch dropped would be replaced for nobody."""
    assert hasattr(importlib.import_module(module), name)


def test_everything_that_is_replaced_is_listed(cuda):
    """What `enable` replaced, and torch had, stands in the list."""
    from simrank.torch.cuda import switch

    listed = {name for _, name in REPLACED}
    replaced = {
        each.name
        for each in switch._patches.entries
        if each.held is not ABSENT and getattr(each.owner, "__name__", "").startswith("torch.cuda")
    }
    exported = {"Stream", "Event", "ExternalStream"}
    legacy = {name for name in replaced if name.endswith("Tensor")}
    assert replaced - legacy - exported <= listed


# ---- objects are replaced under all of their names ----


def test_names_that_an_installed_module_gets_later():
    """A module that had none of the objects is looked at again once it has more names."""
    old, new = object(), object()
    library = ModuleType("a_library")
    library.__file__ = "/usr/lib/python3/site-packages/a_library.py"
    sys.modules["a_library"] = library
    patches = Ledger(__name__)
    try:
        replace_everywhere(patches, [(old, new)])
        library.later = old
        replace_everywhere(patches, [(old, new)])
        assert library.later is new
        patches.restore()
        assert library.later is old
    finally:
        del sys.modules["a_library"]


def test_names_that_a_program_bound_before(cuda):
    """`from torch.cuda import Stream` in a module gives the class that works."""
    from simrank.torch.cuda import disable, standalone

    disable()
    program = ModuleType("a_program")
    program.Stream = dummy = torch.cuda.Stream
    sys.modules["a_program"] = program
    try:
        with standalone(1):
            assert program.Stream is torch.cuda.Stream
            assert program.Stream().cuda_stream == 1
        assert program.Stream is dummy
        with pytest.raises(RuntimeError, match=r"requires CUDA support|CUDA driver"):
            program.Stream()
    finally:
        del sys.modules["a_program"]
