"""Kernel cases: one that is right, one that is wanted wrongly, one that only one side runs."""

import os

import numpy as np
import triton
import triton.language as tl

IS_REAL = "SIMRANK_WORKER" in os.environ


@triton.jit
def scale(x, y, n, by, BLOCK: tl.constexpr):  # noqa: N803 - as in Triton
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


def _scaled(bench, by):
    x, out = bench.normal(100), bench.out(100)
    bench.launch(scale, (2,), bench.put(x), out, 100, by, BLOCK=64)
    return x, out


def right(bench):
    x, out = _scaled(bench, 2.0)
    bench.expect(out, 2 * x, 0)


def unwanted(bench):
    """Nothing is wanted: the sides are compared with each other."""
    bench.expect(_scaled(bench, 2.0)[1])


def apart(bench):
    bench.expect(_scaled(bench, 2.5 if IS_REAL else 2.0)[1])


def wanted_wrongly(bench):
    x, out = _scaled(bench, 2.0)
    bench.expect(out, 3 * x)


def wrong_on_gpu(bench):
    x, out = _scaled(bench, 2.5 if IS_REAL else 2.0)
    bench.expect(out, 2 * x)


def raises(bench):
    if IS_REAL:
        raise ValueError("no such kernel")


def shape(bench):
    bench.expect(bench.put(np.zeros(3 if IS_REAL else 4)))


RUNS = {
    case.__name__: case
    for case in (right, unwanted, apart, wanted_wrongly, wrong_on_gpu, raises, shape)
}
