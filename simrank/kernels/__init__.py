"""Triton kernels on simulated devices: unmodified source, emulated in numpy, with costs.

Read `launch`, then `link`, `batches` and `block`. Nothing here is imported before a kernel is
launched, so simrank works without triton.
"""
