"""Triton kernels on simulated devices: unmodified source, emulated in numpy, with costs.

Read `launch`, then the rooms from above, each with arrows downwards only:

- `source/`: a kernel's source is read, rewritten, and bound to the emulation
- `ptx/`, `shmem/`, `language/`: what its names mean: inline assembly, symmetric memory, `tl`
- `memory/`, `running/`, `compiler/`: what it touches, how its programs run, what builds it
- `races/`, `cost/`: what goes wrong, and how long it takes
- `values/`, `machine/`: what it computes with, and who computes now

Nothing here is imported before a kernel is launched, so simrank works without triton.
"""
