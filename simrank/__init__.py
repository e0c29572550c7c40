"""simrank: a multi-GPU program in one Python process, with real numbers and simulated time.

Start with `Context` and `multiprocessing.spawn`.
"""

from simrank import distributed, errors, multiprocessing
from simrank.context import Context
from simrank.device import Event, Stream, Tensor

__version__ = "0.1.0"
__all__ = ["Context", "Event", "Stream", "Tensor", "distributed", "errors", "multiprocessing"]
