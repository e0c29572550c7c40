"""The check of foreign packages reads findings off what `simrank run` prints."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def packages():
    """Return the module of the check, which is a script."""
    spec = importlib.util.spec_from_file_location("foreign", HERE / "foreign_packages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_package_has_a_program(packages):
    """And each program a package; tests beside them are pytest's."""
    programs = {program for _, program in packages.PINNED.values()}
    files = {path.name for path in (HERE / "foreign").glob("[a-z]*.py")}
    assert programs == {name for name in files if not name.startswith("test_")}


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
