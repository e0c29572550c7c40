"""The program of a rank, recorded in the same way on both sides."""

from __future__ import annotations

import importlib
import os
import random
import runpy
import sys
import time
import traceback
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import ConfigProblem
from simrank.validate.compare.job import RAISED, NoFunctionError, Record
from simrank.validate.compare.values import captured
from simrank.validate.reset import SEED

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.validate.compare.job import Job

_OWN = str(Path(__file__).resolve().parents[2])


def recorded(job: Job, rank: int, body: Callable[[], Any]) -> Record:
    """Run a rank's program, and return its record, exceptions included."""
    record = Record(rank)
    if job.backend == "gloo":  # Which moves host tensors: there is no GPU on either side.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    _seed()
    start = time.perf_counter()
    try:
        value = body()
        _synchronize()
        record.time_us = (time.perf_counter() - start) * 1e6
        record.value = captured(value)
    except SystemExit as error:
        if _is_simulators(error):
            raise
        if error.code not in (None, 0):
            _note(record, error)
    except NoFunctionError:
        raise
    except Exception as error:  # noqa: BLE001 - what is compared
        _note(record, error)
    return record


def _is_simulators(error: SystemExit) -> bool:
    """Return whether a rank is being ended from outside."""
    return type(error) is not SystemExit


def _note(record: Record, error: BaseException) -> None:
    record.ending = RAISED
    record.error = type(error).__name__
    ours = type(error).__module__.startswith("simrank")
    record.error_kinds = tuple(kind.__name__ for kind in type(error).__mro__ if ours)
    record.text = str(error).partition("\n")[0]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename):
            record.file, record.line = frame.filename, frame.lineno
            break


def is_users(file: str) -> bool:
    """Whether a file is of the user's program: neither simrank's, nor torch's, nor Python's own."""
    if file.startswith(("<", _OWN)) or "site-packages" in file:
        return False
    library = str(Path(os.__file__).parent)
    return not file.startswith(library)


def _seed() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(SEED)


def _synchronize() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def called(job: Job, rank: int) -> Any:  # noqa: ANN401 - any value
    """Import the program's module and call its function; in a rank that has its process group.

    Raises:
        NoFunctionError: The module has no such function.
    """
    path = Path(job.path).absolute()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    function = getattr(_module(path), job.function or "", None)
    if not callable(function):
        got = f"no function {job.function}"
        raise NoFunctionError(ConfigProblem(job.path, None, "", "a function of the file", got))
    return function(rank, job.num_ranks)


def _module(path: Path) -> Any:  # noqa: ANN401 - a module
    found = util.find_spec(path.stem)
    if found is not None and found.origin == str(path):
        return importlib.import_module(path.stem)
    spec = util.spec_from_file_location(path.stem, path)  # Another of that name comes first.
    assert spec is not None, "a file that has been read before"
    assert spec.loader is not None, "likewise"
    module = util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def executed(job: Job) -> None:
    """Run the file as a script of torchrun's, in a real process."""
    sys.argv[:] = [job.path, *job.args]
    sys.path.insert(0, str(Path(job.path).absolute().parent))
    runpy.run_path(job.path, run_name="__main__")
