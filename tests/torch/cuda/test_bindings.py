"""The small functions of torch.cuda."""

from __future__ import annotations

import pytest
import torch

from simrank.errors import UnsupportedError
from simrank.torch import cuda as simulated


def test_ranges_of_nvtx_nest(cuda):
    """Push and pop give depths; ranges and marks pass."""
    assert torch.cuda.nvtx.range_push("outer") == 0
    assert torch.cuda.nvtx.range_push("inner") == 1
    assert torch.cuda.nvtx.range_pop() == 1
    assert torch.cuda.nvtx.range_pop() == 0
    torch.cuda.nvtx.mark("here")
    with torch.cuda.nvtx.range("all"):
        pass


def test_settings_and_versions(cuda):
    """What programs set and ask at their start."""
    torch.cuda.init()
    assert torch.cuda.is_initialized()
    torch.cuda.ipc_collect()
    assert torch.cuda.can_device_access_peer(0, 1)
    assert "sm_90" in torch.cuda.get_arch_list()
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    torch.set_float32_matmul_precision(before)
    torch.backends.cuda.enable_flash_sdp(True)
    assert torch.backends.cuda.flash_sdp_enabled()


def test_deterministic_algorithms(cuda):
    """Operators with a deterministic kernel run under the switch."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.ones(4, 4, device="cuda").cumsum(0)[3, 0].item() == 4
    finally:
        torch.use_deterministic_algorithms(False)


def test_sleep_is_told():
    """`torch.cuda._sleep` names its cycles and its stream."""
    heard = []
    callbacks = simulated.Callbacks(on_stream_call=lambda *call: heard.append(call))
    with simulated.standalone(1, callbacks=callbacks):
        torch.cuda._sleep(1000)
    assert heard == [(simulated.StreamCall.SLEEP, 0, 0, 0, 1000)]


@pytest.mark.parametrize(
    "call", [lambda: torch.cuda.set_sync_debug_mode("error"), lambda: torch.cuda.MemPool(None)]
)
def test_what_is_not_supported_is_refused_by_name(cuda, call):
    """Rather than accepted and not done."""
    with pytest.raises(UnsupportedError, match=r"torch\.cuda\.\w+ on simulated CUDA devices"):
        call()
