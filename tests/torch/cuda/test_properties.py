"""What devices say of themselves."""

from __future__ import annotations

import torch

from simrank.torch import cuda as simulated


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
