"""What names mean in the source of a kernel."""

import functools
import inspect
import types

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language import core
from triton.language.core import _aggregate as aggregate

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import UnsupportedError

from ..assembly import launch

N = 256


def test_kernels_may_be_closures(on_rank):
    """They see the variables around them."""
    shift = tl.constexpr(5)

    @triton.jit
    def shifted(x_ptr, out, N: tl.constexpr):
        tl.store(out + tl.arange(0, N), tl.load(x_ptr + tl.arange(0, N)) + shift)

    def body(ctx):
        x = np.ones(N, "f4")
        assert (launch(ctx, shifted, [x], np.zeros(N, "f4"), N=N) == 6).all()

    on_rank(body)


# ---- aggregates: classes of several values whose methods are device functions ----


@aggregate
class Window:
    """Some elements behind a pointer; its constructor is plain Python."""

    base: tl.tensor
    size: tl.constexpr
    step: tl.constexpr

    def __init__(self, base, size, step=1):
        self.base = base
        self.size = tl.constexpr(size)
        self.step = tl.constexpr(step)

    @triton.jit
    def load(self, shift):
        """Read `size` elements from `shift` on."""
        return tl.load(self.base + shift + self.step * tl.arange(0, self.size))


@aggregate
class Plain:
    """A pointer and numbers, without a constructor."""

    base: tl.tensor
    first: tl.constexpr
    second: tl.constexpr = 3


@aggregate
class Scaled:
    """A number and its constructor, which is a device function."""

    value: tl.constexpr

    @triton.jit
    def __init__(self, value: tl.constexpr):
        self.value = value


# Triton 3.5 takes a plain constructor only.
constructor = triton.constexpr_function if hasattr(Window, "hash_attrs") else lambda own: own


@aggregate
class Peers:
    """Where the buffers of all ranks are; made by a function of its own."""

    rank: tl.constexpr
    addresses: tl.tensor

    @constructor
    def __init__(self, rank, addresses):
        self.rank = tl.constexpr(rank)
        self.addresses = addresses

    @staticmethod
    @triton.jit
    def initialize(addresses, rank: tl.constexpr):
        """Return the peers that a table of addresses names."""
        return Peers(rank, addresses.to(tl.pointer_type(tl.uint64)))

    @triton.jit
    def buffer(self, peer):
        """Return where a peer's buffer is."""
        return tl.load(self.addresses + peer).to(tl.pointer_type(tl.int32))

    @triton.jit
    def put(self, peer, offs, value):
        """Write to a peer's buffer."""
        tl.store(self.buffer(peer) + offs, value)

    @triton.jit
    def signal(self, flags, peer):
        """Set my flag at a peer."""
        flag = tl.load(flags.to(tl.pointer_type(tl.uint64)) + peer).to(tl.pointer_type(tl.int32))
        tl.atomic_xchg(flag + self.rank, 1, sem="release", scope="sys")

    @triton.jit
    def look(self, flags, peer):
        """Return what a peer has set my flag to."""
        flag = tl.load(flags.to(tl.pointer_type(tl.uint64)) + self.rank)
        flag = flag.to(tl.pointer_type(tl.int32)) + peer
        return tl.atomic_add(flag, 0, sem="acquire", scope="sys")


@triton.jit
def shifted_sum(x, out, SIZE: tl.constexpr):
    window = Window(x, SIZE, step=2)
    tl.store(out + tl.arange(0, SIZE), window.load(0) + window.load(1))


@triton.jit
def makes_plain(out):
    plain = Plain(out, first=4)
    tl.store(plain.base, plain.first + plain.second)


@triton.jit
def makes_scaled(out):
    tl.store(out, Scaled(7).value)


@triton.jit
def assigns_afterwards(x):
    window = Window(x, 4)
    window.size = 8


@triton.jit
def exchange(addresses, flags, out, RANK: tl.constexpr):
    peers = Peers.initialize(addresses, RANK)
    peers.put(1 - peers.rank, tl.arange(0, 4), RANK + tl.arange(0, 4))
    peers.signal(flags, 1 - peers.rank)
    while peers.look(flags, 1 - peers.rank) != 1:
        pass
    tl.store(out + tl.arange(0, 4), tl.load(peers.buffer(peers.rank) + tl.arange(0, 4)))


@pytest.mark.parametrize("mode", ["batched", "one-by-one"])
def test_methods_read_fields_and_defaults(run, mode):
    """A field may be a pointer of the kernel, or known at compile time."""

    def body(rank, ctx):
        out = ctx.zeros(4)
        shifted_sum[(1,)](ctx.arange(8, dtype=simrank.float32), out, SIZE=4, mode=mode)
        assert out.tolist() == [1.0, 5.0, 9.0, 13.0]

    run(body, 1)


def test_fields_are_assigned_without_a_constructor_where_triton_does(run):
    """From 3.8 on; before it they stay unset."""

    def body(rank, ctx):
        out = ctx.zeros(1)
        if hasattr(Plain, "__aggregate_defaults__"):
            makes_plain[(1,)](out)
            assert out.item() == 7.0
            return
        with pytest.raises(
            AttributeError, match="constructor for Plain did not initialize attribute 'base'"
        ):
            makes_plain[(1,)](out)
            ctx.synchronize()

    run(body, 1)


@pytest.mark.skipif(hasattr(Window, "hash_attrs"), reason="Triton 3.6 and later do not look")
def test_a_device_function_as_constructor_is_refused_where_triton_does(run):
    """By 3.5, in its own words."""

    def body(rank, ctx):
        with pytest.raises(ValueError, match=r"Scaled.__init__ cannot be a @triton.jit function"):
            makes_scaled[(1,)](ctx.zeros(1))
            ctx.synchronize()

    run(body, 1)


def test_an_aggregate_is_not_changed_once_it_is_made(run):
    """As in Triton, whose words differ between releases."""

    def body(rank, ctx):
        assigns_afterwards[(1,)](ctx.zeros(8))
        with pytest.raises(AttributeError, match="'size' on immutable aggregate Window"):
            ctx.synchronize()

    run(body, 1)


def test_a_loop_over_a_method_that_reads_waits_for_a_peer(run):
    """What a method does is known before the kernel runs: it waits and publishes."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(4, dtype=simrank.int32))
        out = ctx.zeros(4, dtype=simrank.int32)
        operation = exchange[(1,)](
            handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, RANK=rank
        )
        assert out.tolist() == [1 - rank + i for i in range(4)]
        assert operation.mode == "tasks"

    run(body, 2, races="error")


# ---- builtins that choose what they call: what is around the stub runs, not the stub ----


@core.extern
def axis_of_thread(axis: core.constexpr, _semantic=None):
    return core.extern_elementwise(
        "", "", [], {(): (f"llvm.nvvm.read.ptx.sreg.tid.{axis.value}", core.dtype("int32"))},
        is_pure=False, _semantic=_semantic,
    )  # fmt: skip


@core.extern
def barrier(_semantic=None):
    return tl.tensor(_semantic.builder.create_barrier(), tl.void)


@core.extern
def cuda_tid(axis: core.constexpr, _semantic=None):
    if axis == 0:
        return axis_of_thread(core.constexpr("x"), _semantic=_semantic)
    return axis_of_thread(core.constexpr("y"), _semantic=_semantic)


@core.extern
def cuda_ld(ptr, scope: core.constexpr, semantic: core.constexpr, _semantic=None):
    return tl.inline_asm_elementwise(
        asm=f"ld.global.{semantic.value}.{scope.value}.b32 $0, [$1];",
        constraints="=r,l",
        args=[ptr],
        dtype=ptr.dtype.element_ty,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


@core.extern
def cuda_st(ptr, val, scope: core.constexpr, semantic: core.constexpr, _semantic=None):
    return tl.inline_asm_elementwise(
        asm=f"st.global.{semantic.value}.{scope.value}.b32 [$1], $2; mov.u32 $0, 0;",
        constraints="=r,l,r",
        args=[ptr, val],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


@core.extern
def cuda_atomic_add(ptr, val, scope: core.constexpr, semantic: core.constexpr, _semantic=None):
    return core.atomic_add(ptr, val, sem=semantic, scope=scope, _semantic=_semantic)


@triton.jit
def cuda_plus_one(value):
    return value + 1


# Functions of one backend, as a module of its own would have them.
BACKEND = types.SimpleNamespace(
    tid=cuda_tid, ld=cuda_ld, st=cuda_st, atomic_add=cuda_atomic_add, plus_one=cuda_plus_one,
    __syncthreads=barrier,
)  # fmt: skip


@core.extern
def unknown_operation(_semantic=None):
    return tl.tensor(_semantic.builder.create_magic(), tl.void)


class Proxy:
    def __init__(self, backend):
        self._backend = backend

    def dispatch(self, stub):
        parameters = [*inspect.signature(stub).parameters.values()]
        parameters.append(
            inspect.Parameter("_semantic", inspect.Parameter.KEYWORD_ONLY, default=None)
        )

        @core.builtin
        @functools.wraps(stub)
        def wrapper(*args, _semantic=None, **kwargs):
            method = getattr(self._backend, stub.__name__)
            if "_semantic" in inspect.signature(method).parameters:
                kwargs["_semantic"] = _semantic
            return method(*args, **kwargs)

        wrapper.__signature__ = inspect.signature(stub).replace(parameters=parameters)
        return wrapper


_proxy = Proxy(BACKEND)


@_proxy.dispatch
def tid(axis): ...


@_proxy.dispatch
def ld(ptr, scope, semantic): ...


@_proxy.dispatch
def st(ptr, val, scope, semantic): ...


@_proxy.dispatch
def atomic_add(ptr, val, scope, semantic): ...


@_proxy.dispatch
def plus_one(value): ...


def __syncthreads(): ...


sync_threads = _proxy.dispatch(__syncthreads)


@core.builtin
def num_warps(_semantic=None):
    return core.constexpr(_semantic.builder.options.num_warps)


@core.builtin
def by_type(value, *rest, _semantic=None):
    if value.dtype == tl.int32:
        return core.cast(value, tl.int64, _semantic=_semantic)
    return value


@core.builtin
def nothing(value, _semantic=None):
    """It says what it would do."""


@triton.jit
def later(value): ...


@triton.jit
def planned(value):
    pass


@triton.jit
def each_thread(out):
    thread = tid(0)
    sync_threads()
    st(out + thread, plus_one(thread) + num_warps(), "gpu", "relaxed")


@triton.jit
def wait_and_count(flag, count):
    while ld(flag, "sys", "acquire") != 1:
        pass
    atomic_add(count, 5, "gpu", "relaxed")


@triton.jit
def set_flag(flag):
    st(flag, 1, "sys", "release")


@triton.jit
def call_with_types(out):
    tl.store(out, by_type(tl.load(out)) << 40)


@triton.jit
def call_nothing(out):
    nothing(out)


@triton.jit
def call_later(out):
    later(out)


@triton.jit
def call_unknown(out):
    unknown_operation()
    tl.store(out, 1)


@core.builtin
def thread_by_type(value, *rest, _semantic=None):
    return axis_of_thread("x") if value.dtype == tl.int64 else value


@triton.jit
def ask_in_secret(out):
    tl.store(out, thread_by_type(tl.load(out)))


@triton.jit
def call_planned(out):
    planned(out)


@triton.jit
def empty(out):
    pass


def test_each_thread_gets_its_own_index_through_a_dispatcher(run):
    """That it asks is known before it runs: the kernel has threads."""

    def body(rank, ctx):
        out = simrank.zeros(128, dtype=simrank.int32)
        each_thread[(1,)](out)
        np.testing.assert_array_equal(out.numpy(), np.arange(128) + 5)

    run(body, 1)


def test_a_wait_through_a_dispatcher_is_one(run):
    """The program is parked until the other kernel, on another stream, has set the flag."""

    def body(rank, ctx):
        flag, count = (simrank.zeros(1, dtype=simrank.int32) for _ in range(2))
        ctx.synchronize()
        side = ctx.Stream()
        with ctx.stream(side):
            wait_and_count[(1,)](flag, count)
        set_flag[(1,)](flag)
        side.synchronize()
        assert count.item() == 5

    run(body, 1)


def test_what_depends_on_arguments_is_decided_when_it_is_called(run):
    """The kernel then runs as one that might wait."""

    def body(rank, ctx):
        out = simrank.ones(1, dtype=simrank.int32).to(simrank.int64)
        call_with_types[(1,)](out)
        assert out.item() == 1 << 40

    run(body, 1)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [(call_nothing, "nothing"), (call_later, "later"), (call_planned, "planned")],
    ids=["docstring", "ellipsis", "pass"],
)
def test_a_function_without_a_body_is_refused_by_name(run, kernel, name):
    """It stands for something that is not there."""

    def body(rank, ctx):
        out = simrank.zeros(1)
        kernel[(1,)](out)
        with pytest.raises(UnsupportedError, match=f"{name} has no body"):
            out.item()
            ctx.synchronize()

    run(body, 1)


def test_a_kernel_without_a_body_runs(run):
    """It is what measures a launch."""

    def body(rank, ctx):
        empty[(1,)](simrank.zeros(1))
        ctx.synchronize()

    run(body, 1)


def test_what_a_library_builds_with_the_compiler_is_refused_by_name(run):
    """There is no compiler: what is known of one is how a launch runs, and its barrier."""

    def body(rank, ctx):
        out = simrank.zeros(1)
        call_unknown[(1,)](out)
        with pytest.raises(UnsupportedError, match="create_magic"):
            out.item()

    run(body, 1)


def test_a_kernel_that_asks_for_threads_in_secret_is_refused(run):
    """It runs as one thread, and what the first of them does is not what all do."""

    def body(rank, ctx):
        out = simrank.zeros(1, dtype=simrank.int64)
        ask_in_secret[(1,)](out)
        with pytest.raises(UnsupportedError, match="asks which thread it is"):
            out.item()

    run(body, 1)
