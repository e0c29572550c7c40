"""Runs every case under Triton's own interpreter, in a process of its own.

`python stock.py FILE` with TRITON_INTERPRET=1 writes a pickle: the output of each case, or what it
raised. Arrays need little to pass for tensors.
"""

import inspect
import pickle
import sys
import traceback
from pathlib import Path

import numpy as np
from triton.runtime import interpreter


class Storage:
    """The memory of an array."""

    def __init__(self, array):
        self.array = array

    def data_ptr(self):
        return self.array.ctypes.data

    def cpu(self):
        return self

    def copy_(self, other):
        assert other.array is self.array, "the interpreter works on the array itself"


class ArrayAsTensor:
    """What the interpreter asks of a torch tensor, over a numpy array."""

    def __init__(self, array):
        self.array = array
        self.dtype = array.dtype.name.replace("bool", "int1")

    def data_ptr(self):
        return self.array.ctypes.data

    def untyped_storage(self):
        return Storage(self.array)

    def new_empty(self, _size, device):
        assert device == "cpu"
        return ArrayAsTensor(self.array)

    def set_(self, *_where):
        return self

    def storage_offset(self):
        return 0

    def size(self):
        return self.array.shape

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)


def mend():
    """Let tensors be indexes before Triton 3.7, whose conversion numpy 2.4 refuses."""
    original = interpreter._patch_lang_tensor
    if "int(self.handle.data)" not in inspect.getsource(original):
        return

    def patch(tensor, *scope):
        original(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patch


def main(file):
    """Run the cases and write what came out."""
    sys.path.insert(0, str(Path(__file__).parent))
    from cases import CASES

    mend()
    found = {}
    for name, case in CASES.items():
        out = np.zeros(*case.out)
        arrays = [ArrayAsTensor(array.copy()) for array in case.inputs]
        try:
            with np.errstate(all="ignore"):
                case.kernel[case.grid](*arrays, ArrayAsTensor(out), **case.constants)
            found[name] = out
        except Exception:  # noqa: BLE001 - what the interpreter cannot run is shown by the test
            found[name] = traceback.format_exc()
    Path(file).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
