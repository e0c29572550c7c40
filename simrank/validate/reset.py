"""The state that every case starts from: what a worker had when it was ready.

The seeds are TransformerEngine's pool's: a case gives the same numbers alone and after others.
"""

from __future__ import annotations

import os
import random
import sys
from contextlib import suppress
from typing import Any

SEED = 1234


class Baseline:
    """Environment, folder, search path and torch's defaults as they are now."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._folder = os.getcwd()
        self._argv = list(sys.argv)

    def restore(self) -> None:
        """Put them back, and seed the random generators of Python, numpy and torch.

        A library that a case itself is the first to import, inside a function, is not seeded there.
        """
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        with suppress(OSError):  # A folder that was removed since.
            os.chdir(self._folder)
        sys.argv[:] = self._argv
        random.seed(SEED)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(SEED)
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(SEED)
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
            if torch.are_deterministic_algorithms_enabled():  # Setting it imports a compiler.
                torch.use_deterministic_algorithms(False)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
