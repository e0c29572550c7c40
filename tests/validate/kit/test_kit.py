"""The kit ends and writes its rows after any failure, with fake GPUs."""

import ast
import getpass
import json
import os
import platform
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import simrank
from simrank.validate.kit.assemble import Own, script
from simrank.validate.kit.evidence import read_evidence
from simrank.validate.kit.predictions import predicted
from simrank.validate.kit.script.machine import clean, links, visible
from simrank.validate.kit.script.main import worlds

STANDIN = Path(__file__).parent / "standin"


OWN = """
import torch, torch.distributed as dist
def step(rank, ranks):
    x = torch.arange(64, device='cuda').float() / (rank + 3)
    dist.all_reduce(x)
    return {'sum': x, 'rank': rank}
"""


@pytest.fixture(scope="session")
def kit(tmp_path_factory):
    """A kit with the predictions of one cluster, and a program of its author."""
    path, own = tmp_path_factory.mktemp("kit") / "kit.py", Own(OWN, "step")
    path.write_text(script(predicted(["hgx_h100"], [2], own=own), own))
    return path


@pytest.fixture(scope="session")
def bare_kit(tmp_path_factory):
    """A kit without predictions."""
    path = tmp_path_factory.mktemp("bare") / "kit.py"
    path.write_text(script({}))
    return path


def run(kit, *words, gpus=1, **variables):
    """Run a kit with fake GPUs; return its exit status, output and result."""
    env = {**os.environ, "PYTHONPATH": str(STANDIN), "OMP_NUM_THREADS": "1"}
    env |= {"STANDIN_GPUS": str(gpus), **variables}
    out = kit.with_name("kit.json")
    out.unlink(missing_ok=True)
    command = [sys.executable, str(kit), "--out", str(out), *words]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=300, cwd=kit.parent, check=False
    )
    return done.returncode, done.stdout, json.loads(out.read_text())


def notes_of(document):
    rows = document["measured"]["rows"]
    return [row["text"] for row in rows if row["kind"] == "note"]


def test_a_kit_is_one_readable_file_without_simrank():
    """Small, of the standard library and torch."""
    text = script({"hgx_h100": '{"times":{}}'})
    assert len(text) < 200_000
    imports = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    assert not [name for name in imports if name.startswith("simrank")]
    packages = {name.partition(".")[0] for name in imports}
    assert packages - set(sys.stdlib_module_names) == {"torch", "triton", "numpy"}
    assert "What it does not do" in ast.get_docstring(ast.parse(text))
    assert "noqa" not in text


@pytest.mark.parametrize(
    "text",
    [
        "gcc -I/home/alice.smith/miniconda3/include -L/data/acme-secret/venv/lib",
        "No such file: '/home/alice'",
        "./secret/alice/x.py failed",
        "in '/data/John alice/x.py'",
        "connect to 10.1.2.3<455> failed",
        "dgx-alice:123:456 [0] NCCL WARN",
    ],
)
def test_texts_of_errors_name_no_folder_host_or_user(text):
    """Compilers, NCCL and Python write them in several ways."""
    cleaned = clean(text)
    assert "(private)" in cleaned
    for word in ("alice", "secret", "10.1.2.3", "John"):
        assert word not in cleaned


def test_two_gpus_are_measured_from_end_to_end(kit):
    """Each phase has times with predictions; values, orders and hangs are those predicted.

    A program of the author is measured too, with the values it has on simulated GPUs.
    """
    status, output, document = run(kit, "--hang-limit", "5", gpus=2)
    assert status == 0, output
    assert document["differs"] == []
    assert "6 values and orders of calls, 2 hangs: all as predicted" in output
    assert document["measured"]["failures"] == []
    assert [each["hung"] for each in document["measured"]["hangs"]] == [True, True]
    found = read_evidence(json.dumps(document), "kit.json")
    assert found.cluster == "hgx_h100"
    phases = {each.phase for each in found.times()}
    assert phases == {
        "launches",
        "copies",
        "products",
        "attention",
        "collectives",
        "pairs",
        "own program",
    }
    own = [each.name for each in found.times() if each.phase == "own program"]
    assert own == ["step on 2 ranks"]
    assert {each.is_inside for each in found.times() if each.phase == "collectives"} <= {
        True,
        False,
    }
    assert len(document["measured"]["rows"]) > 60
    text = json.dumps(document)
    private = [str(Path.home()), str(kit.parent), platform.node(), getpass.getuser()]
    assert [word for word in private if len(word) > 2 and word in text] == []


def test_links_and_processes_are_those_of_the_gpus_that_the_run_may_use(monkeypatch):
    """CUDA_VISIBLE_DEVICES leaves some of a shared machine."""
    table = "GPU0 X NV18 SYS CPU\nGPU1 NV18 X NODE CPU\nGPU2 SYS NODE X CPU\n"
    assert links(table) == [["X", "NV18", "SYS"], ["NV18", "X", "NODE"], ["SYS", "NODE", "X"]]
    assert links(table, ["1", "2"]) == [["X", "NODE"], ["NODE", "X"]]
    for value, found in (("1, 2", ["1", "2"]), ("GPU-8a", ["GPU-8a"]), ("MIG-1/2", []), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert visible() == found


def test_all_gpus_are_measured_together_for_any_number_of_them():
    """Those of 2, 4 and 8 have predictions."""
    numbers = {count: list(worlds(count)) for count in (2, 3, 4, 6, 8)}
    assert numbers == {2: [2], 3: [3, 2], 4: [4, 2], 6: [6, 4, 2], 8: [8, 4, 2]}


@pytest.mark.slow  # 8 processes that import torch.
def test_collectives_and_pairs_of_eight_gpus_are_measured(bare_kit):
    """Of 8, 4 and 2 ranks; messages between each pair of all."""
    status, output, document = run(bare_kit, "--only", "collectives,pairs", gpus=8)
    assert status == 0, output
    rows = document["measured"]["rows"]
    found = {row["ranks"] for row in rows if row["kind"] == "time"}
    assert found == {8, 4, 2}
    both = [row for row in rows if row["phase"] == "pairs" and row["kind"] == "time"]
    assert [(row["bytes"], len(row["each_us"])) for row in both] == [(8, 28)]
    assert "stopped before 0 to 1, 64 MiB: too little free memory" in notes_of(document)


@pytest.mark.slow  # 14 processes that import torch.
def test_programs_of_eight_gpus_have_the_predicted_values(bare_kit, kit):
    """And of one GPU nothing is run together."""
    status, _, document = run(bare_kit, "--only", "programs", gpus=8)
    assert status == 0
    names = [row["name"] for row in document["measured"]["rows"] if row["kind"] == "value"]
    assert len(names) == 15
    assert "experts on 8 ranks" in names
    status, _, document = run(bare_kit, "--only", "programs,hangs", gpus=1)
    assert (status, document["measured"]["rows"]) == (0, [])


def test_nccl_tests_are_read_where_they_are(bare_kit, tmp_path):
    """Their times in place, where torch works in place."""
    binary = tmp_path / "all_reduce_perf"
    lines = (
        "#  size count type redop root time\n 1024 256 float sum -1 12.34 0.08 0.08 0 12.1 0 0 0"
    )
    binary.write_text(f"#!/bin/sh\necho '{lines}'\n")
    binary.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    status, _, document = run(bare_kit, "--only", "nccl-tests", gpus=2, PATH=path)
    [row] = document["measured"]["rows"]
    assert (status, row["name"], row["time_us"]) == (0, "all_reduce of 2 ranks, 1 KiB", 12.1)


@pytest.fixture(scope="module")
def small_gpu(kit):
    """A run on a GPU that is not known and has too little memory."""
    failure = "products:out_of_memory"
    only = "launches,products"
    return run(kit, "--only", only, STANDIN_NAME="NVIDIA T4", STANDIN_FAILURE=failure)


def test_an_unknown_gpu_has_times_and_no_predictions(small_gpu):
    """They are of use still."""
    status, _, document = small_gpu
    assert (status, document["cluster"], document["summary"]) == (0, "", [])
    phases = [row["phase"] for row in document["measured"]["rows"]]
    assert phases.count("launches") == 4


def test_too_little_memory_ends_an_item(small_gpu):
    """The next one is measured."""
    _, _, document = small_gpu
    assert any("out of memory" in note for note in notes_of(document))
    assert len(document["measured"]["rows"]) > 34


@pytest.mark.parametrize(
    ("phase", "how", "gpus", "words"),
    [
        ("copies", "raise", 1, "unspecified launch failure in (private)"),
        ("collectives", "crash", 2, "signal SIGSEGV"),
        pytest.param("launches", "hang", 1, "did not end within 15 s", marks=pytest.mark.slow),
    ],
)
def test_what_fails_ends_its_phase_alone(bare_kit, phase, how, gpus, words):
    """The other phases are measured, what there was is kept, and the status says it."""
    only = f"{phase},products"
    limit = ["--limit", "150"] if how == "hang" else []
    status, output, document = run(
        bare_kit, "--only", only, *limit, gpus=gpus, STANDIN_FAILURE=f"{phase}:{how}"
    )
    assert status == 1
    assert "FAILED" in output
    [failure] = [f for f in document["measured"]["failures"] if f["phase"].startswith(phase)]
    assert words in failure["reason"]
    assert any(row["phase"] == "products" for row in document["measured"]["rows"])


def test_the_pool_measures_nccl_on_the_same_machine(tmp_path):
    """`simrank compare --bench --backend nccl`: data, times, and predictions of that GPU."""
    bench = tmp_path / "bench.yaml"
    bench.write_text(
        "cluster: hgx_h100\ncollectives: [all_reduce]\nsizes: [1 KiB]\nnum_ranks: [2]\n"
    )
    root = Path(simrank.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": f"{root}:{STANDIN}", "STANDIN_GPUS": "2"}
    command = [sys.executable, "-m", "simrank", "compare", "--bench", str(bench)]
    done = subprocess.run(
        [*command, "--backend", "nccl"],
        env=env, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "measured on this machine (NVIDIA H100 80GB HBM3, nccl)" in done.stdout
    [row] = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["1024"]]
    assert row[5] == "5.00"  # The clock counts an operation: the pool follows collectives itself.
    assert "Out of bounds values : 0 OK (2 of 2 rows checked)" in done.stdout


def test_a_run_that_is_stopped_leaves_no_process_and_its_result(bare_kit):
    """As by a scheduler, or a lost connection."""
    env = {**os.environ, "PYTHONPATH": str(STANDIN), "STANDIN_GPUS": "2"}
    env["STANDIN_FAILURE"] = "launches:hang"
    out = bare_kit.with_name("stopped.json")
    command = [sys.executable, str(bare_kit), "--only", "launches", "--out", str(out)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as started:
        for line in started.stdout:
            if "launches" in line:
                break
        workers = Path(f"/proc/{started.pid}/task/{started.pid}/children")
        while not workers.read_text().split():
            pass
        [worker] = workers.read_text().split()
        started.terminate()
        started.stdout.read()
    assert started.returncode == 1
    assert not Path(f"/proc/{worker}").exists()
    assert json.loads(out.read_text())["measured"]["failures"][-1]["reason"] == "interrupted"


def test_a_result_that_cannot_be_written_is_said_at_once(bare_kit):
    """Not after five minutes."""
    command = [sys.executable, str(bare_kit), "--out", "/nowhere/kit.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert "to fix: --out FILE" in done.stdout


@pytest.fixture(scope="module")
def without_gpus(bare_kit):
    """A run without GPUs, where there is a result already; the run, and the two files."""
    earlier = bare_kit.with_name("none.json")
    earlier.write_text("{}")
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(bare_kit), "--out", str(earlier)]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    return done, earlier, bare_kit.with_name("none-2.json")


def test_a_machine_without_gpus_has_a_status_of_its_own(without_gpus):
    """And a result that says so."""
    done, _, out = without_gpus
    assert done.returncode == 4
    assert json.loads(out.read_text())["measured"]["failures"][0]["reason"] == "torch sees no GPU"


def test_an_earlier_result_is_kept(without_gpus):
    """The new one has a number."""
    done, earlier, out = without_gpus
    assert out.name in done.stdout
    assert earlier.read_text() == "{}"


def test_wrong_words_are_refused(bare_kit, capsys):
    """With the words that are expected."""
    main = runpy.run_path(str(bare_kit))["main"]
    for words, told in (
        (["--only", "product"], "expected some of launches, copies, products"),
        (["--limit", "0"], "--limit of 30 s or more"),
    ):
        assert main(words) == 2
        assert told in capsys.readouterr().out
