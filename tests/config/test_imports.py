"""What a benchmark of a program would import, found without importing it."""

import sys

import pytest

from simrank.config import check_file
from simrank.errors import ConfigError


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Write a benchmark of a program; the current folder is another one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    def write(program):
        path = tmp_path / "sweep.yaml"
        path.write_text(f"program: {program}\ncluster: hgx_h100\nparameters: {{a: [1, 2]}}\n")
        return path

    return write


def test_check_says_what_would_be_imported_and_runs_none_of_it(sweep, tmp_path):
    """Module, function and folder; packages on the way are not run either."""
    package = tmp_path / "never_run"
    package.mkdir()
    for file in (tmp_path / "never_run_either.py", package / "__init__.py", package / "steps.py"):
        file.write_text("raise SystemExit('it was run')")
    said = check_file(sweep("never_run_either.mlp"))
    assert said == (
        "benchmark of program never_run_either.mlp, 2 runs; it imports mlp of "
        f"never_run_either.py in {tmp_path}"
    )
    assert check_file(sweep("never_run.steps.f")).endswith(f"f of steps.py in {package}")
    assert not {"never_run_either", "never_run"} & set(sys.modules)


def test_a_module_that_is_not_there_is_a_configuration_error(sweep):
    """With the line that names it."""
    for program in ("nowhere.f", "json.nowhere.f"):
        with pytest.raises(ConfigError, match=r"sweep\.yaml:1: program: .*no module"):
            check_file(sweep(program))


def test_modules_of_python_itself_are_named(sweep):
    """Those that are files, and those that are none."""
    assert "it imports dumps of __init__.py in " in check_file(sweep("json.dumps"))
    assert check_file(sweep("sys.exit")).endswith("it imports exit of sys")
