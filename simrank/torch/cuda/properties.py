"""Properties of a simulated device."""

from __future__ import annotations

import uuid as uuids
from dataclasses import dataclass, field

GIB = 1 << 30


@dataclass(frozen=True)
class DeviceProperties:
    """The fields of torch's `_CudaDeviceProperties`; defaults are an H100 SXM's.

    Source: NVIDIA H100 data sheet and CUDA C++ programming guide, compute capability 9.0.
    """

    name: str = "NVIDIA H100 80GB HBM3"
    major: int = 9
    minor: int = 0
    total_memory: int = 80 * GIB
    multi_processor_count: int = 132
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    L2_cache_size: int = 50 << 20
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 227 << 10
    shared_memory_per_multiprocessor: int = 228 << 10
    clock_rate: int = 1_980_000  # kHz
    memory_clock_rate: int = 2_619_000  # kHz
    memory_bus_width: int = 5120
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    uuid: uuids.UUID = field(default=uuids.UUID(int=0))

    @property
    def gcnArchName(self) -> str:  # noqa: N802 - torch's name.
        """Return the device's name, as CUDA builds do."""
        return self.name

    def __str__(self) -> str:
        """Return torch's text."""
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )

    __repr__ = __str__
