"""Lines of programs in reports: files by name, cells of notebooks by number."""

import sys
import types

import pytest

from simrank.engine import user_site
from simrank.errors import RankState
from simrank.errors.locations import cell_text, place_text


def test_a_file_is_told_by_its_name():
    """As ever."""
    assert place_text("/home/user/train.py", 41) == "train.py:41"
    assert cell_text("/home/user/train.py") is None
    assert cell_text("<string>") is None


def test_a_cell_of_terminal_ipython_is_told_by_its_number():
    """Which is part of the name of its file."""
    assert place_text("<ipython-input-3-0a1b2c3d4e5f>", 4) == "In [3], line 4"


def test_a_cell_of_a_kernel_is_told_by_the_number_that_ipython_gave_it(monkeypatch):
    """Its file has another one; without IPython's table the number is not known."""
    file = "/tmp/ipykernel_12/3456.py"
    assert place_text(file, 4) == "In [?], line 4"
    compiler = types.SimpleNamespace(_filename_map={file: 7})
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert place_text(file, 4) == "In [7], line 4"
    assert (
        str(RankState((0, 1), "barrier #1", file, 4)) == "ranks 0-1: barrier #1 at In [7], line 4"
    )


@pytest.mark.parametrize("file", ["<ipython-input-3-0a1b>", "/tmp/ipykernel_12/3456.py"])
def test_a_cell_is_part_of_the_program(file):
    """The site of a call in it is its own."""
    names = {"user_site": user_site}
    exec(compile("\n\nsite = user_site()", file, "exec"), names)  # noqa: S102 - a cell
    assert names["site"].line() == (file, 3)
