"""The check of other projects' suites reads recipes, outcomes and findings."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def packages():
    """Yield the module of the check, which is a script."""
    spec = importlib.util.spec_from_file_location("foreign", HERE / "foreign_suites.py")
    module = sys.modules["foreign"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["foreign"]


def test_each_folder_is_a_recipe_that_names_its_tests(packages):
    """Each file of `tests.txt` has rows in `expected.tsv`."""
    names = [path.parent.name for path in sorted((HERE / "foreign").glob("*/recipe.yaml"))]
    assert {"lightning", "deepspeed", "megatron_lm", "torchtitan"} <= set(names)
    for name in names:
        recipe = packages.recipe_of(name)
        asked = [test for tests in recipe.commands().values() for test in tests]
        assert recipe.commands()
        assert len(asked) == len(set(asked)) or recipe.rows
        if (recipe.here / "expected.tsv").exists():
            files = {test.partition("::")[0] for test in recipe.expected()}
            assert files >= {test.partition("::")[0] for test in asked if not recipe.rows}


def test_a_table_counts_what_needs_no_gpu(packages, capsys):
    """What fails on processes too, and what was not tried there, counts neither way."""
    table = {
        "a": ["passed", "passed", ""],
        "b": ["gpu", "failed", "simrank: a reason"],
        "c": ["failed", "failed", "suite: another"],
        "d": ["-", "passed", ""],
    }
    packages.print_share("some", table, 12.3)
    assert capsys.readouterr().out == "some: 1 of 2 tests pass; simrank: 1; 12 CPU s\n"


def test_what_a_line_leaves_out_is_missed_on_no_other(packages):
    """A test that ends its process is tried on neither, or on one."""
    table = {"a": ["passed", "-", "simrank: a reason"], "b": ["-", "passed", ""]}
    assert packages.missing_of(table, {}, 0) == ["a"]
    assert packages.missing_of(table, {}, 1) == ["b"]
    assert packages.missing_of(table, {"b": "passed"}, 1) == []


def test_the_worst_of_the_ranks_is_the_outcome_of_a_test(packages, tmp_path):
    """And what a run was asked for and did not run has failed."""
    notes = tmp_path / "outcomes"
    notes.write_text("f.py::a\tpassed\nf.py::a\tfailed: E\nf.py::a\tpassed\nf.py::b\tskipped\n")
    found = packages.by_test(notes, ["f.py::a", "f.py::b", "f.py::c"], 3, "first\nlast\n")
    assert found == {
        "f.py::a": "failed: E",
        "f.py::b": "skipped",
        "f.py::c": "failed: not run: status 3: last",
    }


@pytest.mark.parametrize(
    ("behind", "found"),
    [
        ("", None),
        ("  ranks 0-1: returned without destroy_process_group() of 'default_pg'\n", None),
        ("  rank 0: send never received\n", "findings:\n  rank 0: send never received"),
    ],
)
def test_findings_stand_behind_the_summary(packages, behind, found):
    """Notes are none."""
    text = f"costliest collectives:\n  barrier\nconstants of the cluster: 1 assumed\n{behind}"
    assert packages.findings_in(text) == found
