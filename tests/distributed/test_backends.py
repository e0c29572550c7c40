"""Backends: which one a tensor selects, what each admits, what the host waits for."""

from datetime import timedelta

import pytest

import simrank.distributed as dist
from simrank.device import DTYPES
from simrank.distributed.backends import (
    check_reduction,
    check_timeout,
    default_timeout,
    parse_backend,
)
from simrank.errors import UnsupportedError

Op = dist.ReduceOp


@pytest.mark.parametrize(
    ("given", "name", "backends"),
    [
        (None, "undefined", {"cpu": "gloo", "cuda": "nccl"}),
        ("nccl", "nccl", {"cuda": "nccl"}),
        ("nccl2", "nccl2", {"cuda": "nccl"}),
        ("GLOO", "gloo", {"cpu": "gloo", "cuda": "gloo"}),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", {"cpu": "gloo", "cuda": "nccl"}),
        ("cuda:nccl", "cuda:nccl", {"cuda": "nccl"}),
    ],
)
def test_backend_strings_are_torchs(given, name, backends):
    """A name, or pairs of device and backend."""
    assert parse_backend(given) == (name, backends)


@pytest.mark.parametrize(
    ("given", "kind", "match"),
    [
        ("mpi", UnsupportedError, "mpi"),
        ("cpu:nccl", UnsupportedError, "cpu:nccl"),
        ("cpu:gloo:x", ValueError, "Invalid device:backend pairing"),
        ("cpu:gloo,cpu:gloo", ValueError, "Duplicate device type"),
    ],
)
def test_wrong_backend_strings_are_refused(given, kind, match):
    """By name."""
    with pytest.raises(kind, match=match):
        parse_backend(given)


@pytest.mark.parametrize(
    ("backend", "op", "dtype", "error"),
    [
        ("nccl", Op.BXOR, "int32", (ValueError, "Cannot use ReduceOp.BXOR with NCCL")),
        ("nccl", Op.AVG, "bool", (TypeError, "Cannot use ReduceOp.AVG with boolean inputs")),
        ("nccl", Op.AVG, "int32", None),
        ("nccl", Op.SUM, "bool", None),
        ("gloo", Op.BOR, "float32", (RuntimeError, "Cannot use ReduceOp.BOR with non-integral")),
        ("gloo", Op.AVG, "int32", (RuntimeError, "can't be cast to the desired output type Int")),
        ("gloo", Op.AVG, "float16", None),
        ("gloo", dist._make_nccl_premul_sum(2.0), "float32", (RuntimeError, "with Gloo")),
        ("nccl", dist._make_nccl_premul_sum(2.0), "int32", (TypeError, "PreMulSum Data type")),
        ("nccl", dist._make_nccl_premul_sum(2.0), "bfloat16", None),
    ],
)
def test_reductions_are_admitted_as_in_torch(backend, op, dtype, error):
    """Type and words of what torch raises."""
    if error is None:
        check_reduction(backend, op, DTYPES[dtype])
    else:
        with pytest.raises(error[0], match=error[1]):
            check_reduction(backend, op, DTYPES[dtype])


def test_timeouts_are_timedeltas():
    """Ten minutes with nccl, thirty otherwise."""
    assert default_timeout("nccl") == timedelta(minutes=10)
    assert default_timeout("gloo") == timedelta(minutes=30)
    with pytest.raises(TypeError, match=r"datetime\.timedelta, got 3"):
        check_timeout(3)


def test_gloo_blocks_the_host_and_nccl_does_not(run):
    """The same call on a host and on a device tensor of one group."""

    def program(rank, ctx):
        dist.init_process_group()
        assert dist.get_backend() == "undefined"
        x, y = ctx.ones(4), ctx.ones(4, device="cpu")
        dist.all_reduce(x)
        assert ctx.now_ps == 0
        dist.all_reduce(y)
        assert ctx.now_ps > 0
        assert y.array[0] == 2
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        assert y.tolist() == [4] * 4
        assert work.is_completed()

    run(program, 2)


def test_gloo_takes_device_tensors_after_the_current_streams_work(run):
    """It waits for what the stream still computes."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.ones(2**20) * 3
        dist.all_reduce(x)
        assert x.array[0] == 6

    run(program, 2)


def test_programs_may_ask_for_what_there_is_anywhere():
    """Scripts do so before they start ranks, and in the main program."""
    import simrank.distributed as dist

    assert dist.is_available()
    assert dist.is_nccl_available()
    assert dist.is_gloo_available()
    assert not dist.is_mpi_available()
    assert not dist.is_initialized()
