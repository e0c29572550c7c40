"""Import kernels before any test is timed; a process loads them once."""

import importlib
import importlib.util

if importlib.util.find_spec("triton") is not None:
    importlib.import_module("triton.language")
    importlib.import_module("simrank.kernels.launch")
