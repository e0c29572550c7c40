"""The library is one per process, and C++ raises Python's own exceptions."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from simrank.torch.cuda import native as module


def test_it_is_loaded_once():
    """And every function that Python calls is there."""
    library = module.native()
    assert library is module.native()
    for name in module._SIGNATURES:
        assert getattr(library, f"simrank_{name}")


def test_kept_exceptions_are_raised_once():
    """By the thread that kept them, as they are; then there is none."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    raise_kept = partial(torch.ops.simrank_cuda.raise_kept.default.redispatch, keys)
    error = KeyError("kept")
    assert module.keep(error) == -1
    with pytest.raises(KeyError) as caught:
        raise_kept(1)
    assert caught.value is error
    with pytest.raises(AssertionError, match="Torch not compiled with CUDA enabled"):
        raise_kept(0)


@pytest.mark.parametrize(
    "within",
    [
        torch.inference_mode,
        # `torch.tensor` is written so: it asks for the device that it puts its numbers on.
        lambda: torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
        ),
    ],
    ids=["inference", "torch.tensor"],
)
def test_autograd_starts_wherever_a_program_first_uses_a_device(within):
    """Be it where autograd is switched off: nothing of the thread's own is asked."""
    with within():
        module._start_autograd_without_devices()
    assert torch.ones(1, requires_grad=True).mul(2).requires_grad
