"""Options of `simrank run`."""

from __future__ import annotations

import re

import pytest
import typer

from simrank.cli import options
from simrank.cli.options import FLAGS, WITH_VALUE, check_words, num_ranks
from simrank.device.routing import Routing
from simrank.device.stated_values import StatedValues
from simrank.errors import ConfigError, UnsupportedError
from simrank.hardware.load import load_cluster


@pytest.mark.parametrize(
    ("texts", "routing", "expected"),
    [
        (None, None, StatedValues()),
        (["zero"], None, StatedValues(0.0)),
        (["ones"], "balanced", StatedValues(1.0, routing=Routing.parse("balanced"))),
        (["2.5", "src/moe.py:12=3"], None, StatedValues(2.5, {"moe.py:12": 3.0})),
        (["a.py:1=ones", "a.py:2=-1"], None, StatedValues(None, {"a.py:1": 1.0, "a.py:2": -1.0})),
    ],
)
def test_unknown_states_numbers_for_the_run_and_for_lines(texts, routing, expected):
    """Words and numbers; the file by its name, as reports have it."""
    assert options.stated_values(texts, routing, shape_only=True) == expected


@pytest.mark.parametrize(
    ("texts", "routing", "shape_only", "message"),
    [
        (["frog"], None, True, "known words: zero, ones"),
        (["a.py=3"], None, True, "expected FILE:LINE"),
        (["a.py:1=frog"], None, True, "known words: zero, ones"),
        (None, "even", True, "expected balanced, zipf"),
        (["1"], None, False, "add --shape-only"),
        (None, "balanced", False, "add --shape-only"),
    ],
)
def test_unknown_is_refused_where_it_means_nothing(texts, routing, shape_only, message):
    """A text that is not a number, and a run that has all values."""
    with pytest.raises(typer.BadParameter, match=message):
        options.stated_values(texts, routing, shape_only=shape_only)


# ---- torchrun's options at `simrank run`: none is passed over in silence ----

REFUSED = {
    "--no-python", "--virtual-local-rank", "--logs-specs", "--duplicate-stdout-filters",
    "--duplicate-stderr-filters",
}  # fmt: skip


@pytest.fixture
def program(tmp_path):
    """A script that shows its arguments."""
    path = tmp_path / "shows.py"
    path.write_text("import sys\nprint(sys.argv[1:])\n")
    return path


def test_what_says_nothing_here_is_named_in_one_line(cli, program):
    """A launch line can stay as it is; the program's own options are its own."""
    status, out, err = cli(
        "run", "--nproc_per_node=1", "--rdzv-backend", "c10d", "--master_port=29501",
        "--max-restarts", "3", "--standalone", "--nnodes=1:1", "--summary", "none", program,
        "--role", "x", "--no-python",
    )  # fmt: skip
    assert (status, out) == (0, "['--role', 'x', '--no-python']\n")
    named = "--rdzv-backend, --master_port"
    assert err == f"simrank: ignored, as ranks share a process: {named}\n"


RESTARTED = """
import os, sys
import simrank.distributed as dist

count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("nccl")
if dist.get_rank() == 1 and count < 2:
    sys.exit(7) if count else int("x")
dist.barrier()
print(count, os.environ["TORCHELASTIC_MAX_RESTARTS"], os.environ["MASTER_PORT"])
"""


@pytest.mark.parametrize("most", [1, 2, 3])
def test_all_ranks_start_anew_where_one_fails_as_often_as_they_may(cli, tmp_path, most):
    """They know how often they have; a failure beyond that is the program's."""
    path = tmp_path / "restarted.py"
    path.write_text(RESTARTED)
    status, out, err = cli(
        "run", "--nproc-per-node", 2, "--max-restarts", most, "--summary", "none", path
    )
    first = "simrank: restart 1 of {}, after rank 1: ValueError: invalid literal for int()"
    assert err.startswith(first.format(most))
    if most == 1:
        assert (status, out) == (1, "")
        assert err.endswith("process 1 terminated with exit code 7\n")
        return
    assert "\nsimrank: restart 2 of" in err
    assert (status, out) == (0, f"[rank0]: 2 {most} 29500\n[rank1]: 2 {most} 29500\n")


def test_a_hang_is_told_and_not_started_anew(cli, tmp_path):
    """It would hang again."""
    path = tmp_path / "hangs.py"
    path.write_text(RESTARTED.replace('int("x")', "sys.exit(0)").replace("sys.exit(7)", "0"))
    status, _, err = cli("run", "--nproc-per-node", 2, "--max-restarts", 3, path)
    assert status == 1
    assert "deadlock (proved)" in err
    assert "restart 1" not in err


def test_every_other_option_is_ignored_aloud_or_refused_by_name(cli, program):
    """In both spellings."""
    ignored = []
    for option in [*WITH_VALUE, *FLAGS]:
        words = [option] if option in FLAGS else [option, "1"]
        if option.replace("_", "-") in REFUSED:
            status, out, err = cli("run", "--nproc-per-node", 1, *words, program)
            assert (status, out) == (2, "")
            assert f"{option} is not supported: " in err
        else:
            ignored += words
    status, out, err = cli("run", "--nproc-per-node", 1, *ignored, program)
    assert (status, out) == (0, "[]\n")
    assert set(ignored) - {"1"} <= set(re.findall(r"--[\w-]+", err))


def test_a_mistyped_option_gets_a_suggestion(cli, program):
    """It is not taken for the program."""
    status, _, err = cli("run", "--nproc-per-nod", 2, program)
    assert status == 2
    assert "--nproc-per-node" in err


@pytest.mark.parametrize(("given", "expected"), [(None, 8), ("auto", 8), ("gpu", 8), ("3", 3)])
def test_ranks_per_node_are_a_number_or_all_devices(given, expected):
    """The words are torchrun's."""
    assert num_ranks(load_cluster("hgx_h100"), given) == expected


@pytest.mark.parametrize("given", ["0", "9", "cpu", "-1", "two"])
def test_no_such_number_of_ranks_is_bad_usage(given):
    """With the numbers that a node has devices for."""
    with pytest.raises(ConfigError, match="--nproc-per-node: expected 1 to 8"):
        num_ranks(load_cluster("hgx_h100"), given)


def test_some_devices_of_each_of_several_nodes_are_refused():
    """Ranks use devices in order."""
    with pytest.raises(UnsupportedError, match="4 of 8 devices per node on 2 nodes"):
        num_ranks(load_cluster("h100_ib", 2), "4")


@pytest.mark.parametrize(("nodes", "ranks"), [("2", 16), ("2:2", 16), ("1:3", 24)])
def test_a_range_of_nodes_runs_with_the_most(cli, program, nodes, ranks):
    """No node joins late."""
    options = ["--cluster", "h100_ib", "--summary", "none", "--nnodes", nodes]
    status, out, err = cli("run", *options, program)
    assert (status, len(out.splitlines())) == (0, ranks)
    assert ("3 nodes run from the start" in err) == (nodes == "1:3")


@pytest.mark.parametrize("nodes", ["0", "x", "1:2:3", "", "1:"])
def test_no_such_number_of_nodes_is_bad_usage(cli, program, nodes):
    """With what torchrun takes."""
    status, _, err = cli("run", "--nnodes", nodes, program)
    assert status == 2
    assert "--nnodes: expected a number of nodes from 1, or a range such as 1:4" in err


def test_who_writes_n_is_told_the_option(cli, program):
    """As mpirun has it."""
    status, _, err = cli("run", "-n", 4, program)
    assert status == 2
    assert "--nproc-per-node N" in err


@pytest.mark.parametrize("name", ["torch.distributed.run", "torch.distributed.launch"])
def test_a_launcher_as_the_program_is_refused_by_name(cli, program, name):
    """It would start processes on every rank."""
    status, out, err = cli("run", "--nproc-per-node", 2, "-m", name, program)
    assert (status, out) == (1, "")
    assert f"simrank run -m {name}" in err


def test_with_a_log_dir_each_rank_has_an_error_file_of_its_own(cli, tmp_path):
    """Where torch's `@record` writes; the folder is there."""
    path = tmp_path / "names.py"
    path.write_text(
        "import os\n"
        "with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as file:\n"
        "    file.write(os.environ['RANK'])\n"
    )
    status, _, _ = cli("run", "--nproc-per-node", 2, "--log-dir", tmp_path / "logs", path)
    assert status == 0
    files = [tmp_path / "logs" / str(rank) / "error.json" for rank in range(2)]
    assert [file.read_text() for file in files] == ["0", "1"]


# ---- what is said of a word that an option does not know ----

SCRIPT = "train.py"
FABRIC = "take a cluster with a fabric: h100_efa, h100_ib"


@pytest.mark.parametrize(
    ("args", "to_fix"),
    [
        (["run", "--on-failure", "contine", SCRIPT], "write `continue`"),
        (["run", "--carrier", "tread", SCRIPT], "write `thread`"),
        (["run", "--compute-time", "rofline", SCRIPT], "write `roofline`"),
        (["run", "--devices", "simulatd", SCRIPT], "write `simulated`"),
        (["run", "--races", "eror", SCRIPT], "write `error`"),
        (["run", "--summary", "jsn", SCRIPT], "write `json`"),
        (["run", "--prefix", "rnk", SCRIPT], "write `rank`"),
        (["run", "--cluster", "hgx_h10", SCRIPT], "write `hgx_h100`"),
        (["bench", "all_reduce", "-o", "smu"], "write `sum`"),
        (["bench", "all_reduce", "-d", "flot32"], "write `float32`"),
        (["explain", "--collective", "all_redue"], "write `all_reduce`"),
        (["tune", "--collective", "all_redue"], "write `all_reduce`"),
        (["accuracy", "--fit", "tabel"], "write `table`"),
        (["compare", "--backend", "glo", SCRIPT], "write `gloo`"),
        (["check", "hgx_h10"], "write `hgx_h100`"),
        (["bench", "all_reduce", "--nodes", "4"], FABRIC),
        (["explain", "--nodes", "4"], FABRIC),
        (["run", "--nnodes", "4", SCRIPT], FABRIC),
    ],
)  # fmt: skip
def test_a_near_miss_is_answered_with_what_was_meant(cli, args, to_fix):
    """With status 2, before anything runs."""
    status, _, err = cli(*args)
    assert status == 2
    assert to_fix in err


def test_a_word_that_resembles_none_gets_the_list():
    """No suggestion is better than a wrong one."""
    with pytest.raises(ConfigError, match=r"expected one of abort, continue, got xyz$"):
        check_words(on_failure="xyz")
    check_words(on_failure=None)
