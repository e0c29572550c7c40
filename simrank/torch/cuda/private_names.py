"""The private names of torch that simulated devices need, in one place.

A new version of torch is tried by changing this list until its test passes.
"""

from __future__ import annotations

# Replaced while devices are enabled: module, attribute.
REPLACED = (
    ("torch.cuda", "_lazy_init"),
    ("torch.cuda", "_lazy_call"),
    ("torch.cuda.random", "_lazy_call"),
    ("torch.cuda", "_initialized"),
    ("torch.cuda", "is_initialized"),
    ("torch.cuda", "_cached_device_count"),
    ("torch.cuda", "_cudart"),
    ("torch.cuda", "_exchange_device"),
    ("torch.cuda", "_maybe_exchange_device"),
    ("torch.cuda", "_CudaDeviceProperties"),
    ("torch.cuda", "default_generators"),
    ("torch.cuda", "device_count"),
    ("torch.cuda", "MemPool"),
    ("torch.cuda.memory", "MemPool"),
    ("torch.cuda.streams", "Stream"),
    ("torch.cuda.streams", "Event"),
    ("torch.cuda.streams", "ExternalStream"),
    ("torch.cuda.graphs", "CUDAGraph"),
    ("torch.cuda.graphs", "graph"),
    ("torch.cuda.graphs", "graph_pool_handle"),
    ("torch.cuda.graphs", "is_current_stream_capturing"),
    ("torch.cuda.graphs", "make_graphed_callables"),
    ("torch.cuda.nvtx", "_nvtx"),
    ("torch.cuda.nccl", "is_available"),
    ("torch.version", "cuda"),
    ("torch.backends.cudnn", "is_acceptable"),
    ("torch.distributed._symmetric_memory", "_should_use_implicit_mempool"),
)
# Called.
CALLED = (
    ("torch._C", "_accelerator_emptyCache"),
    ("torch._C", "_accelerator_resetPeakStats"),
    ("torch._C", "_accelerator_resetAccumulatedStats"),
    ("torch._C", "StorageBase"),
    ("torch._C", "_has_cuda"),
    ("torch._C", "_jit_can_fuse_on_gpu"),
    ("torch._C", "_jit_override_can_fuse_on_gpu"),
)
# In C++: at::detail::getCUDAHooks (an object without data), c10::impl::registerDeviceGuard,
# c10::SetAllocator, c10::SetCPUAllocator, c10::ThreadLocalDebugInfo, c10d::TimerRegistry,
# at::native::_fused_sdp_choice_stub, at::native::templates, c10d::symmetric_memory.
