"""`simrank` itself is the namespace of every rank: torch's names, of whoever runs, and typed."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import simrank
from simrank.device.dtypes import ALIASES, DTYPES
from simrank.device.tensors import factories
from simrank.device.tensors.methods import TensorMethods
from simrank.device.tensors.namespace import CURRENT, FUNCTIONS, MODULE_NAMES
from simrank.errors import NoRankError

STUB = Path(simrank.__file__).with_suffix(".pyi")
HEAD = '''"""What `import simrank` offers, for type checkers; made by tests/test_namespace.py.

To make it anew: SIMRANK_UPDATE=1 pytest tests/test_namespace.py
"""

from typing import Any

from simrank import bench as bench
from simrank import distributed as distributed
from simrank import errors as errors
from simrank import explore as explore
from simrank import multiprocessing as multiprocessing
from simrank import validate as validate
from simrank.context import Context as Context
from simrank.device import DType
from simrank.device import Event as Event
from simrank.device import Stream as Stream
from simrank.device import Tensor as Tensor
from simrank.device.dtypes import promote
from simrank.device.tensors import factories, indexing, joining, products
from simrank.device.tensors.namespace import CURRENT
from simrank.errors import OutOfMemoryError as OutOfMemoryError
from simrank.planning.predict import predict as predict
from simrank.planning.predict import predict_attention as predict_attention
from simrank.planning.predict import predict_gemm as predict_gemm

__version__: str

def __dir__() -> list[str]: ...

Size = tuple[int, ...]
dtype = DType

class device:
    """A device, as torch.device: its name, its index, or both."""

    type: str
    index: int | None
    def __new__(cls, device: object, index: int | None = None) -> Any: ...
'''
OWN = {"OutOfMemoryError", "Size", "Stream", "Event", "device", "dtype"}
MODULES = {"joining": ("cat", "concat", "stack"), "indexing": ("where",), "products": ("einsum",)}
ORIGINAL = {"concat": "cat"}


def stub():
    """Return the stub that the tables of names ask for."""
    lines = [f"{name}: DType" for name in sorted({*DTYPES, *ALIASES} - {"bool", "float", "int"})]
    lines += [f"{name}: DType" for name in ("bool",)]
    for name in sorted(MODULE_NAMES - OWN - {*DTYPES, *ALIASES}):
        lines.append(f"{name} = {source_of(name)}")
    return HEAD + "\n" + "\n".join(lines) + "\n"


def source_of(name):
    """Return the expression that has a name's type."""
    for module, names in MODULES.items():
        if name in names:
            return f"{module}.{ORIGINAL.get(name, name)}"
    if hasattr(factories, name) and name not in vars(TensorMethods):
        return f"factories.{name}"
    if name == "promote_types":
        return "promote"
    if name in FUNCTIONS and name != "is_tensor":
        return f"Tensor.{name}"
    return f"CURRENT.{name}"


def test_the_stub_names_what_the_module_has():
    """Made from the same tables; a name that is added there is typed."""
    if os.environ.get("SIMRANK_UPDATE"):
        STUB.write_text(stub())
    assert STUB.read_text() == stub()


def test_every_name_of_the_stub_is_there():
    """In a Context, each can be asked for."""
    with simrank.Context():
        missing = [name for name in MODULE_NAMES if not hasattr(simrank, name)]
    assert missing == []
    assert set(dir(simrank)) >= MODULE_NAMES


PROGRAM = """
import simrank
from simrank.tp import ColumnParallelLinear

def program(rank: int) -> None:
    simrank.cuda.set_device(rank)
    x = simrank.cat([simrank.zeros(2), simrank.ones(2, device="cuda")])
    side = simrank.Stream()
    with simrank.no_grad(), simrank.stream(side):
        y: simrank.Tensor = simrank.matmul(x.reshape(2, 2), x.reshape(2, 2))
    y.record_stream(side)
    layer = ColumnParallelLinear(4, 4)
    weight: simrank.Tensor = layer.weight
    print(y, weight.shape, simrank.device("cuda:0"), simrank.float32)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "error"),
    [("", None), ("simrank.zerosss(3)", "zerosss"), ("simrank.cuda.set_devise(0)", "set_devise")],
)
def test_mypy_finds_a_name_that_is_none(tmp_path, line, error):
    """And nothing wrong in a program that uses what there is."""
    (tmp_path / "program.py").write_text(f"{PROGRAM}\n    {line}\n".replace("\n\n    \n", "\n"))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if error is None:
        assert done.returncode == 0, done.stdout
    else:
        assert f'has no attribute "{error}"' in done.stdout


def test_names_are_those_of_whoever_runs():
    """Devices, streams and factories of each rank; of the main program outside of ranks."""
    seen = {}

    def program(rank):
        simrank.cuda.set_device(rank)
        x = simrank.cat([simrank.zeros(2), simrank.ones(2)])
        side = simrank.Stream()
        side.wait_stream(simrank.current_stream())
        with simrank.no_grad(), simrank.stream(side):
            y = simrank.matmul(x, x)
        simrank.current_stream().wait_stream(side)
        y.record_stream(simrank.current_stream())
        seen[rank] = (y.item(), y.device.index, side.name, simrank.cuda.current_device())

    with simrank.Context() as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
        assert simrank.device("cuda:3") is ctx.devices[3]
        assert simrank.device("cuda", 3) is ctx.devices[3]
        assert simrank.cuda.device_count() == 8
        assert isinstance(simrank.zeros(2).device, simrank.device)
        assert isinstance(simrank.zeros(2, device="cpu").device, simrank.device)
        assert not isinstance(3, simrank.device)
        assert isinstance(simrank.Stream("cuda:1"), simrank.Stream)
        assert isinstance(simrank.cuda.Stream(2), simrank.Stream)
        assert isinstance(simrank.Event(enable_timing=True), simrank.cuda.Event)
    assert seen == {rank: (2.0, rank, "stream 1", rank) for rank in range(2)}


def test_small_things_of_torch_are_there():
    """As scripts use them without thinking."""
    with simrank.Context():
        assert str(simrank.device("cuda:3")) == "cuda:3"
        assert (7 // simrank.tensor([2, 3])).tolist() == [3, 2]
        assert (7 % simrank.tensor([2, 4])).tolist() == [1, 3]
        assert isinstance(simrank.float32, simrank.dtype)
        assert simrank.zeros(2, 3).shape == simrank.Size([2, 3])

        @simrank.no_grad()
        def double(x):
            return x * 2

        assert double(simrank.ones(1)).item() == 2
        with simrank.inference_mode(), simrank.no_grad():
            pass


def test_a_stream_that_a_program_makes_is_dropped_with_it():
    """As those of a Context's `Stream()`: what is left on it does not outlive the rank."""

    def program(rank, ctx):
        side = simrank.Stream()
        with simrank.stream(side):
            for _ in range(100):
                simrank.ones(1 << 20)
        raise KeyError("dies")

    with simrank.Context() as ctx:
        with pytest.raises(simrank.errors.SpawnException):
            ctx.multiprocessing.spawn(program, (ctx,), nprocs=1)
        assert ctx.devices[0].launches.num_outstanding == 0


def test_outside_of_a_context_the_names_say_what_is_missing():
    """Not an AttributeError of something inside."""
    for ask in (lambda: simrank.cuda.set_device(0), lambda: simrank.zeros(2), simrank.Stream):
        with pytest.raises(NoRankError):
            ask()
    with pytest.raises(AttributeError, match="zerosss"):
        _ = simrank.zerosss


def test_the_namespace_is_not_imported_before_it_is_used():
    """`import simrank` stays cheap."""
    code = "import simrank, sys; print('simrank.device.tensors.namespace' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert not inspect.ismodule(CURRENT)
