"""The table of behaviours: every number has a test, and every test that it names exists."""

import ast
import re
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECTIONS = (HERE / "README.md").read_text().split("\n## ")[1:]
NOT_STATED = "not stated by the source"
# The numbers of each source, in order.
NUMBERS = {
    "test_kernbench_adr0027.py": [
        *(f"D0.{n}" for n in range(1, 8)), "D1", "D2-D6", "D7", "D8", "T1", "T2",
        *(f"T3.{letter}" for letter in "abcdefg"), "T4", "T5", "T5.g", "T6", "T7",
        "kernels", "data", "yaml",
    ],
    "test_transformer_engine_pool.py": [*map(str, range(1, 16)), *"abcd"],
    "test_megatron_teardown.py": [*map(str, range(1, 7)), "later"],
    "test_cuda_python_children.py": [*map(str, range(1, 9)), "caveat"],
    "test_mooncake_bootstrap.py": [*map(str, range(1, 9))],
}  # fmt: skip


@cache
def rows(file):
    """Return the rows of a system: number -> (behaviour, tests here, tests elsewhere)."""
    (section,) = [each for each in SECTIONS if f"]({file})" in each]
    cells = re.findall(r"^\| (?!no\.)(\S+) \| (.*) \| (.*?) ?\| (.*?) ?\|$", section, re.MULTILINE)
    return {
        number: (behaviour, *(re.findall(r"`(\w+)`", tests) for tests in (here, elsewhere)))
        for number, behaviour, here, elsewhere in cells
    }


def numbers_of(file):
    """Return what the docstrings of a file say: number -> its tests, in order."""
    functions = [
        node
        for node in ast.parse((HERE / file).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    found = []
    for function in functions:
        prefix = re.match(r"([\w.-]+(?:, [\w.-]+)*): ", ast.get_docstring(function))
        assert prefix, f"{file}: {function.name} names no number"
        found += [(number, function.name) for number in prefix[1].split(", ")]
    found.sort(key=lambda pair: pair[0])
    groups = groupby(found, key=lambda pair: pair[0])
    return {number: [name for _, name in pairs] for number, pairs in groups}


def test_there_is_a_section_for_each_of_the_five_systems():
    """In the order of their files here."""
    assert [re.search(r"\]\((test_\w+\.py)\)", each)[1] for each in SECTIONS] == list(NUMBERS)
    files = {path.name for path in HERE.glob("test_*.py")} - {Path(__file__).name}
    assert files == set(NUMBERS)


@pytest.mark.parametrize("file", NUMBERS)
def test_every_number_has_a_test_that_names_it(file):
    """Its docstring begins with the number; the table has the same tests in the same order."""
    assert list(rows(file)) == NUMBERS[file]
    named = numbers_of(file)
    for number, (behaviour, here, _) in rows(file).items():
        assert here == named.pop(number, []), number
        assert here or behaviour == NOT_STATED, number
    assert named == {}, "a test names a number that the table lacks"


@pytest.mark.parametrize("file", NUMBERS)
def test_every_test_that_is_named_elsewhere_exists(file):
    """In another file of tests."""
    sources = [path for path in HERE.parent.rglob("test_*.py") if path.parent != HERE]
    defined = {
        name
        for path in sources
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    for number, (_, _, elsewhere) in rows(file).items():
        assert set(elsewhere) <= defined, number
