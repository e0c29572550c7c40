"""Import triton before any test is timed; it is loaded once in a process."""

import importlib
import importlib.util

if importlib.util.find_spec("triton") is not None:
    importlib.import_module("triton.language")
