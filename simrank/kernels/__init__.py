"""Triton kernels on simulated devices: unmodified source, emulated in numpy, with costs.

Read `launch`, then `operation`, then the packages from top to bottom; each imports only lower ones:

- `source/`: the kernel's source, rewritten and bound to the emulation
- `ptx/`, `shmem/`, `language/`: inline assembly, symmetric memory, the functions of `tl`
- `memory/`, `running/`, `compiler/`: loads and stores, execution of programs, Triton's compiler
- `races/`, `cost`: race checks, simulated time
- `values/`, `machine/`: blocks and types, the running programs and their counts

No module except `extension` is imported before a program imports triton.
"""
