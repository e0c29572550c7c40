"""Measured times that the command line names."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from simrank.calibration.kernel_fits import HeldOutRows
from simrank.cli import main
from simrank.cli.compare import CLUSTERS
from simrank.cli.measured_tables import STDIN, errors_table, texts_of
from simrank.config import configs_dir
from simrank.errors import ConfigError
from simrank.hardware.load import load_cluster
from simrank.validate.compare.comparison import models_of
from tests.validate.kit.test_evidence import PARTS, change_prediction, result

CALIBRATION = Path(__file__).parents[1] / "calibration"
JSON = CALIBRATION / "nccl_tests" / "all_reduce.json"
OUTPUT = JSON.with_suffix(".txt")
INSPECTOR = CALIBRATION / "inspector" / "documented.json"


def test_words_are_tables_files_or_standard_input(monkeypatch):
    """Each text stands under the name of its file."""
    monkeypatch.setattr("sys.stdin", io.StringIO("pasted"))
    name = "h100x8_aws_p5_allreduce"
    texts = texts_of([name, str(JSON), "-"])
    table = configs_dir() / "measured" / f"{name}.csv"
    assert texts == {str(table): table.read_text(), str(JSON): JSON.read_text(), STDIN: "pasted"}


@pytest.mark.parametrize(
    ("stdin", "got"),
    [(None, "no input"), (io.TextIOWrapper(io.BytesIO(b"a\xff"), "utf-8"), "at offset 1")],
)
def test_a_standard_input_that_cannot_be_read_is_said(monkeypatch, stdin, got):
    """Closed, or of bytes that are no text."""
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(ConfigError, match=got):
        texts_of(["-"])


@pytest.mark.parametrize("command", ["accuracy", "calibrate"])
def test_both_commands_read_every_format_from_files_and_standard_input(cli, command, monkeypatch):
    """What nccl-tests and the Inspector wrote, with the ranks of each."""
    status, out, err = cli(command, JSON, "--cluster", "h100_ib")
    assert (status, err) == (0, "")
    assert re.search(r" all_reduce +8 ", out)
    monkeypatch.setattr("sys.stdin", io.StringIO(INSPECTOR.read_text()))
    status, out, err = cli(command, "-", "--cluster", "h100_ib")
    assert (status, err) == (0, "")
    assert re.search(r" all_reduce +8 ", out)
    assert re.search(r" reduce_scatter +32 ", out)


@pytest.mark.parametrize("command", ["accuracy", "calibrate"])
def test_a_broken_file_is_status_2_with_its_line(cli, command, tmp_path):
    """And no traceback."""
    path = tmp_path / "cut.json"
    path.write_text(JSON.read_text()[:500])
    status, _, err = cli(command, path, "--cluster", "h100_ib")
    assert status == 2
    assert err.startswith(f"{path}:1: expected JSON, got ")


def test_what_nccl_tests_does_not_say_may_be_said_to_both(cli, monkeypatch):
    """`accuracy` takes the options that its messages name, as `calibrate` does."""
    line = "  1048576  262144  float  sum  -1  45.0  23.30  20.39  0\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(line))
    status, out, _ = cli(
        "accuracy", "-", "--cluster", "hgx_h100", "--collective", "all_gather", "-g", "8"
    )
    assert status == 0
    assert out.splitlines()[1].split()[:5] == ["standard", "input", "all_gather", "8", "site:"]


LINE = "  1048576  262144  float  sum  -1  45.0  23.30  43.69  0\n"


@pytest.mark.parametrize("command", ["accuracy", "calibrate"])
@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        (["-g", "16", "--nodes", "4"], 0, None),
        (["-g", "16", "--nodes", "1"], 2, "expected 8 ranks on a node of h100_ib at most, got 16"),
        (["-g", "16", "--nodes", "17"], 2, "expected 1 to 16 nodes for 16 ranks, got --nodes 17"),
        (["-g", "8"], 2, "busbw: expected 1.75 times algbw, as all_reduce has on 8 ranks, got"),
    ],
)
def test_nodes_are_said_where_a_log_lists_no_hosts(cli, monkeypatch, command, more, status, said):
    """Ranks are spread evenly; what cannot be is refused."""
    monkeypatch.setattr("sys.stdin", io.StringIO(LINE * (5 if command == "calibrate" else 1)))
    words = [command, "-", "--cluster", "h100_ib", "--collective", "all_reduce", *more]
    found, out, err = cli(*words)
    assert (found, said is None or said in err) == (status, True), out + err


def test_hosts_that_are_listed_contradict_other_nodes(cli, tmp_path):
    """The log knows on which it ran."""
    hosts = "".join(
        f"#  Rank {i} Group 0 Pid 1 on host{i // 8} device {i % 8}\n" for i in range(16)
    )
    path = tmp_path / "log.txt"
    path.write_text(f"# all_reduce_perf\n{hosts}{LINE}")
    assert cli("accuracy", path, "--cluster", "h100_ib", "--nodes", "2")[0] == 0
    status, _, err = cli("accuracy", path, "--cluster", "h100_ib", "--nodes", "4")
    assert status == 2
    assert "expected the 2 hosts that are listed, got --nodes 4\n  to fix: leave --nodes out" in err


@pytest.mark.parametrize("kind", ["text", "json"])
def test_bench_sets_its_times_beside_any_format(cli, tmp_path, kind):
    """What `accuracy` reads, `bench --measured` reads."""
    path = tmp_path / "log"
    path.write_text({"text": OUTPUT, "json": JSON}[kind].read_text())
    num_ranks = {"text": "2", "json": "8"}[kind]
    size = {"text": "8", "json": "1024"}[kind]
    rows = tmp_path / "rows.json"
    words = ["all_reduce", "-g", num_ranks, "-b", size, "-e", size, "-c", "0", "-n", "1"]
    status, _, err = cli("bench", *words, "--measured", path, "--json", rows)
    assert (status, err) == (0, "")
    row = json.loads(rows.read_text())["rows"][0]
    assert row["measured_us"] == {"text": 12.9, "json": 30.25}[kind]


# ---- results of kits on the command line ----


@pytest.fixture
def simrank(cli):
    """Run a command; return what it prints."""

    def run(*args, status=0):
        found, out, err = cli(*args)
        assert found == status, err
        return out + err

    return run


@pytest.fixture
def kit_json(tmp_path):
    path = tmp_path / "kit.json"
    path.write_text(json.dumps(result(), indent=1))
    return str(path)


def test_accuracy_shows_error_bias_and_coverage(simrank, kit_json, tmp_path):
    """With the state of the kit's predictions."""
    page = tmp_path / "rows.json"
    said = simrank("accuracy", kit_json, "--json", str(page))
    assert "2 x NVIDIA H100" in said
    assert "not registered" in said
    assert "collectives      1        20 %  -20 %" in said
    assert "0 of 1" in said
    [row] = json.loads(page.read_text())["rows"]
    assert (row["time_us"], row["predicted_us"]) == (12.5, 10)


def test_compare_says_what_differs(simrank, tmp_path):
    """And exits with 1."""
    ring = {"kind": "value", "phase": "programs", "name": "ring on 2 ranks"}
    path = tmp_path / "kit.json"
    path.write_text(json.dumps(result(rows=[ring | {"ranks": [{"values": [2]}]}]), indent=1))
    said = simrank("compare", str(path), status=1)
    assert "differs: programs, ring on 2 ranks: other values on rank 0" in said


def test_calibrate_takes_the_collectives(simrank, kit_json, tmp_path):
    """On the kit's cluster."""
    out = tmp_path / "mine.yaml"
    simrank("calibrate", kit_json, "--out", str(out))
    assert "hgx_h100" in out.read_text()


def test_a_changed_prediction_is_refused(simrank, tmp_path):
    """By each command."""
    document = json.loads(json.dumps(result()))
    change_prediction(document)
    path = tmp_path / "kit.json"
    path.write_text(json.dumps(document, indent=1))
    for command in ("accuracy", "compare", "calibrate"):
        assert "a changed prediction" in simrank(command, str(path), status=2)


def test_a_machine_without_gpus_has_a_result_that_is_shown(simrank, tmp_path):
    """And nothing was compared."""
    machine = {"device": None, "nccl": None, "torch": "2.13"}
    note = {"kind": "note", "phase": "kernels", "text": "triton is not installed"}
    failure = {"phase": "machine", "reason": "torch sees no GPU"}
    path = tmp_path / "kit.json"
    whole = result(machine=machine, rows=[note], failures=[failure])
    path.write_text(json.dumps(whole, indent=1))
    said = simrank("accuracy", str(path)) + simrank("compare", str(path))
    assert "no GPU" in said
    assert "nothing was compared" in said
    assert "left out: kernels: triton is not installed" in said
    assert "collectives of several GPUs" in simrank("calibrate", str(path), status=2)


def test_compare_runs_no_json_file(simrank, tmp_path):
    """It is no program."""
    path = tmp_path / "other.json"
    path.write_text("{}")
    assert "a kit's result" in simrank("compare", str(path), status=2)


def test_options_of_other_tables_are_refused(simrank, kit_json):
    """They would change nothing."""
    for option, value in (("--nodes", "2"), ("--collective", "broadcast")):
        assert "kit's result" in simrank("accuracy", kit_json, option, value, status=2)


def test_each_gpu_of_a_kit_has_a_model_of_its_own():
    """Or its predictions would be another's."""
    models = [models_of(load_cluster(name).device.name)[0] for name in CLUSTERS]
    assert len(set(models)) == len(models)
    assert PARTS


# ---- the tables of errors of single kernels ----


def test_a_row_has_the_error_bias_coverage_and_half_interval():
    """Of each size class with rows."""
    logs = np.log([1.0, 1.1, 0.9, 1.0])
    left = HeldOutRows("x1", "bfloat16", "own", "x1", np.array([0, 0, 0, 2]), logs)
    table = errors_table([left], {left.key: {0: 0.1, 2: 0.1}}, ("a", "b", "c"))
    console = Console(width=200)
    with console.capture() as shown:
        console.print(table)
    cells = " ".join(shown.get().splitlines()[1].split())
    assert cells == "bfloat16 x1 own: x1 6.7 % (+1) 67 % of 11 % - 0.0 % (+0) 100 % of 11 %"


def test_a_folder_is_needed_to_write_to(capsys):
    """Before anything is fitted."""
    for args in (
        ["--gemm"],
        ["--gemm", "--out", "nowhere/there"],
        ["--gemm", "x.csv", "--out", "."],
    ):
        with pytest.raises(SystemExit) as caught:
            main(["calibrate", "--gemm", *args])
        assert caught.value.code == 2
        assert "--out with a folder" in capsys.readouterr().err
