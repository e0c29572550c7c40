"""The YAML of a program's benchmark: what is wrong names the key."""

import sys

import pytest

from simrank.config import check_file
from simrank.config.sweep import load_sweep
from simrank.errors import ConfigError

GOOD = """\
program: program_of_mine.steps
clusters: [hgx_h100, hgx_b200]
num_ranks: 4
parameters: {size: [1024, 4194304], reduces: [0, 2]}
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("num_ranks: 4", "num_ranks: many"),
            "num_ranks: expected a whole number from 1",
        ),
        (("[1024, 4194304]", "[]"), "parameters.size: expected at least one value"),
        (("hgx_b200", "hgx_c300"), "unknown name"),
        (("program:", "program: 5 #"), "program: expected text"),
        (("parameters:", "params:"), "params"),
        (("program_of_mine.steps", "steps"), "program: expected the name of a function with its"),
        (("[hgx_h100, hgx_b200]", "[]"), "clusters: expected a list of clusters, got nothing"),
        (("[hgx_h100, hgx_b200]", "hgx_h100"), "clusters: expected a list of clusters, got hgx"),
        (("num_ranks: 4", "num_ranks: 40"), "num_ranks: expected 1 to 8 ranks, the devices of"),
        (("num_ranks: 4", "num_ranks: size"), "num_ranks: expected 1 to 8 ranks, the devices of"),
        (("reduces:", "error:"), "parameters.error: expected another name than a column has"),
        (("num_ranks: 4", "algorithms: []"), "algorithms: expected at least one algorithm"),
        (("num_ranks: 4", "algorithms: [a, 5]"), "algorithms[1]: expected the name of an"),
        (("num_ranks: 4", "algorithms: {all_reduce: 1}"), "algorithms: expected the name of an"),
        (
            ("[0, 2]", "[0, 2], " + ", ".join(f"p{i}: [0, 1, 2, 3]" for i in range(30))),
            f"parameters: expected at most 10000 combinations, got {2 * 2 * 2 * 4**30}",
        ),
    ],
)
def test_what_is_wrong_names_the_key(tmp_path, change, message):
    """With file and line."""
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(ConfigError) as caught:
        load_sweep(path)
    assert message in str(caught.value)
    assert "sweep.yaml:" in str(caught.value)


def test_combinations_are_all_of_the_lists_the_last_one_fastest(tmp_path):
    """A single value counts as a list of one."""
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD.replace("reduces: [0, 2]", "reduces: [0, 2], tokens: 8"))
    combinations = load_sweep(path).combinations()
    assert [tuple(each.values()) for each in combinations] == [
        (1024, 0, 8), (1024, 2, 8), (4194304, 0, 8), (4194304, 2, 8),
    ]  # fmt: skip


def test_runs_are_clusters_times_combinations_times_algorithms(tmp_path):
    """Without the key there is no column."""
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD)
    assert [*load_sweep(path).cells()[5].columns.values()] == ["hgx_b200", 1024, 2]
    path.write_text(GOOD + "algorithms: [auto, {all_reduce: ring, all_gather: direct}]\n")
    cells = load_sweep(path).cells()
    assert len(cells) == 16
    assert cells[3].columns == {
        "cluster": "hgx_h100", "size": 1024, "reduces": 2,
        "algorithms": "all_reduce=ring all_gather=direct",
    }  # fmt: skip


# ---- what a benchmark of a program would import, found without importing it ----


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
