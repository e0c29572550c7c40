"""Functions go by name and file, results by value, exceptions if they come back as they are."""

from __future__ import annotations

import pickle
import subprocess
import sys
import types

import pytest

from simrank.validate import pickling

from . import cases


@pytest.fixture
def forgotten(tmp_path):
    """Load modules from files of a folder, and forget them, as a new worker has none."""
    made = []

    def load(name, source):
        path = tmp_path / f"{name.rpartition('.')[2]}.py"
        path.write_text(source)
        pickling._import(name, str(path))
        made.append(name)
        return sys.modules[name]

    yield load
    for name in made:
        sys.modules.pop(name, None)


def test_a_function_of_a_file_that_no_search_path_has_travels(forgotten):
    """Test modules often are such."""
    module = forgotten("nowhere_to_be_found", "def fn():\n    return 42\n")
    packed = pickling.packed((module.fn, (1,)))
    del sys.modules["nowhere_to_be_found"]
    fn, args = pickling.unpacked(packed)
    assert (fn(), args) == (42, (1,))
    assert fn is not module.fn


def test_a_module_inside_a_package_that_is_not_there_travels(forgotten, monkeypatch):
    """As pytest's importlib mode names them."""
    monkeypatch.setitem(sys.modules, "no_package", types.ModuleType("no_package"))
    module = forgotten("no_package.at_all", "class Thing:\n    class Inner:\n        x = 1\n")
    packed = pickling.packed(module.Thing.Inner)
    del sys.modules["no_package.at_all"], sys.modules["no_package"]
    assert pickling.unpacked(packed).x == 1


def test_a_module_that_fails_to_load_is_not_kept(forgotten):
    """The next request says so again."""
    module = forgotten("breaks_later", "def fn():\n    pass\n")
    packed = pickling.packed(module.fn)
    del sys.modules["breaks_later"]
    with open(module.__file__, "w") as file:
        file.write("raise RuntimeError('broken')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            pickling.unpacked(packed)


def test_what_is_in_the_search_path_is_imported_by_name():
    """One module, not two."""
    assert pickling.unpacked(pickling.packed(pickle.loads)) is pickle.loads
    assert pickling.unpacked(pickling.packed(cases.add)) is cases.add


def test_one_pickle_serves_all_workers_unless_it_hands_something_over():
    """A queue's descriptors go once for each."""
    import multiprocessing

    assert len(set(pickling.parcels(([1], 2), 4))) == 1
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    parcels = pickling.parcels(queue, 2)
    assert parcels[0] != parcels[1]
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(queue)
    for parcel in parcels:
        got = pickling.unpacked(parcel)
        got.put(1)
        assert queue.get() == 1
        got.close()
    queue.close()


def test_a_result_that_cannot_be_pickled_names_its_type():
    """A TypeError of the rank's."""
    with pytest.raises(TypeError, match="the result, a generator, cannot be pickled"):
        pickling.result(x for x in ())


@pytest.mark.parametrize(
    ("error", "comes_back"),
    [
        (ValueError("x"), True),
        (cases.StubbornError(1, 2), False),
        (ValueError(lambda: None), False),
    ],
)
def test_an_exception_travels_only_if_it_comes_back(error, comes_back):
    """One that pickles but does not unpickle would break the pool."""
    assert (pickling.failure(error) is not None) == comes_back


SCRIPT = """
import os, sys
from simrank.validate import WorkerPool, rank

CALLS = []


def answer():
    CALLS.append(1)
    return rank(), len(CALLS), __name__


if __name__ == "__main__":
    with WorkerPool(2, None) as pool:
        pool.run(answer)
        print(pool.run(answer))
"""


def test_functions_of_the_main_program_travel(tmp_path):
    """Under multiprocessing's name for it; each case finds its globals as they were loaded."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[(0, 1, '__mp_main__'), (1, 1, '__mp_main__')]\n", done.stderr
