"""Symmetric memory of torch (`torch.distributed._symmetric_memory`, `torch.ops.symm_mem`)."""
