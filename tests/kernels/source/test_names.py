"""What no table has is refused by its name."""

import numpy as np
import pytest

from simrank.errors import UnsupportedError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from triton.language.extra import libdevice  # noqa: E402

N = 256


def launch(ctx, kernel, inputs, out, grid=(1,), **constants):
    """Launch on arrays; return the output as an array."""
    tensors = [ctx.from_numpy(array) for array in (*inputs, out)]
    kernel[grid](*tensors, **constants)
    return tensors[-1].numpy()


@triton.jit
def unknown_function(x_ptr, out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), libdevice.cyl_bessel_i0(tl.load(x_ptr + tl.arange(0, N))))


def test_what_is_not_emulated_is_refused_by_name(on_rank):
    """A stub of libdevice would return None otherwise."""

    def body(ctx):
        launch(ctx, unknown_function, [np.zeros(N, "f4")], np.zeros(N, "f4"), N=N)

    with pytest.raises(UnsupportedError, match=r"libdevice\.cyl_bessel_i0"):
        on_rank(body)
