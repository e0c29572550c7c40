"""Another library's tensors as arguments of kernels."""

from collections import namedtuple

import numpy as np
import triton
import triton.language as tl

from simrank.kernels import library_tensors

Pair = namedtuple("Pair", "first second")


class Theirs:
    """A tensor of a library that computes at once."""

    def __init__(self, tensor):
        self.inner = tensor


class Held:
    """Something that refers to a tensor, as descriptors do."""

    def __init__(self, base):
        self.base = base


class Library:
    """A library with its own tensors."""

    def __init__(self):
        self.calls = []

    def running(self):
        return self

    def asked_by_user(self):
        return None

    def prepare(self):
        self.calls.append("prepare")

    def launched(self, launch, args, kwargs):
        assert callable(launch)
        self.values = [*args, *kwargs.values()]

    def tensor(self, value):
        return value.inner if isinstance(value, Theirs) else None

    def phase(self):
        return "forward"

    def settle(self, reads, writes):
        self.calls.append(("settle", len(reads), len(writes)))

    def in_flight(self, operation, reads, writes):
        self.calls.append(("in flight", len(reads), len(writes)))


def test_tensors_are_found_inside_of_what_holds_them():
    """Tuples keep their type; the holder itself is not changed."""
    held, library = Held(Theirs(1)), Library()
    given = library_tensors.converted(
        library, (Theirs(1), [Theirs(2), 3]), {"p": Pair(Theirs(4), held)}
    )
    assert given.args == (1, [2, 3])
    assert (type(given.kwargs["p"]), given.kwargs["p"].first) == (Pair, 4)
    assert given.kwargs["p"].second.base == 1
    assert isinstance(held.base, Theirs)


@triton.jit
def double(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets) * 2)


@triton.jit
def wait_for(flag, out):
    while tl.atomic_add(flag, 0, sem="acquire") == 0:
        pass
    tl.store(out, 1.0)


def test_a_kernel_runs_at_its_launch_unless_it_waits(ctx, monkeypatch):
    """Numbers are there before the stream has come to it."""
    library = Library()
    monkeypatch.setattr(library_tensors, "_finders", [library])
    x, out, flag = ctx.ones(16), ctx.zeros(16), ctx.zeros(1, dtype="int32")
    ctx.cuda.synchronize()
    operation = double[(1,)](Theirs(x), Theirs(out), BLOCK=16)
    assert not operation.complete
    assert out.storage.array(np.dtype(np.float32)).tolist() == [2.0] * 16
    assert library.calls == ["prepare", ("settle", 2, 1)]
    assert library.values[-1] == 16
    flag.fill_(1)
    wait_for[(1,)](Theirs(flag), Theirs(out))
    assert library.calls[2:] == ["prepare", ("in flight", 2, 2)]
    ctx.cuda.synchronize()
    assert out.tolist() == [1.0] + [2.0] * 15
