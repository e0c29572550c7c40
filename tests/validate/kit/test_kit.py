"""The kit ends and writes its rows after any failure, with fake GPUs."""

import ast
import getpass
import io
import json
import os
import platform
import runpy
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

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


@pytest.fixture(scope="module", autouse=True)
def signals():
    """Put back what a kit does on signals, which `main` changes."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(kit, *words, gpus=1, **variables):
    """Run a kit's `main` with fake GPUs; return its exit status, output and result."""
    out, output = kit.with_name("kit.json"), io.StringIO()
    out.unlink(missing_ok=True)
    given = {"PYTHONPATH": str(STANDIN), "OMP_NUM_THREADS": "1", "STANDIN_GPUS": str(gpus)}
    with mock.patch.dict(os.environ, given | variables), redirect_stdout(output):
        status = runpy.run_path(str(kit))["main"](["--out", str(out), *words])
    return status, output.getvalue(), json.loads(out.read_text())


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


def test_two_gpus_are_measured_from_end_to_end(kit, tmp_path):
    """Each phase has times with predictions; values, orders and hangs are those predicted.

    A program of the author is measured too, with the values it has on simulated GPUs.
    """
    env = {**os.environ, "PYTHONPATH": str(STANDIN), "OMP_NUM_THREADS": "1", "STANDIN_GPUS": "2"}
    done = subprocess.run(
        [sys.executable, str(kit), "--hang-limit", "3"],
        env=env, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    output, document = done.stdout, json.loads((tmp_path / "kit.json").read_text())
    assert done.returncode == 0, output
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
    private = [str(Path.home()), str(kit.parent), str(tmp_path), platform.node(), getpass.getuser()]
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
def test_programs_of_eight_gpus_have_the_predicted_values(bare_kit):
    """And of one GPU nothing is run together."""
    status, _, document = run(bare_kit, "--only", "programs", gpus=8)
    assert status == 0
    names = [row["name"] for row in document["measured"]["rows"] if row["kind"] == "value"]
    assert len(names) == 15
    assert "experts on 8 ranks" in names
    status, _, document = run(bare_kit, "--only", "programs,hangs", gpus=1)
    assert (status, document["measured"]["rows"]) == (0, [])


@pytest.fixture(scope="module")
def broken(kit, tmp_path_factory):
    """A run on GPUs that are not known; each phase but the last fails in its way."""
    binary = tmp_path_factory.mktemp("nccl_tests") / "all_reduce_perf"
    lines = (
        "#  size count type redop root time\n 1024 256 float sum -1 12.34 0.08 0.08 0 12.1 0 0 0"
    )
    binary.write_text(f"#!/bin/sh\necho '{lines}'\n")
    binary.chmod(0o755)
    failure = "copies:raise,products:out_of_memory,collectives:crash"
    only = "copies,products,collectives,nccl-tests"
    path = f"{binary.parent}:{os.environ['PATH']}"
    name = "NVIDIA T4"
    return run(kit, "--only", only, gpus=2, STANDIN_NAME=name, STANDIN_FAILURE=failure, PATH=path)


def test_an_unknown_gpu_has_times_and_no_predictions(broken):
    """They are of use still."""
    _, _, document = broken
    assert (document["cluster"], document["summary"]) == ("", [])
    assert document["measured"]["machine"]["device"]["name"] == "NVIDIA T4"


def test_too_little_memory_ends_an_item(broken):
    """The next one is measured."""
    _, _, document = broken
    assert any("out of memory" in note for note in notes_of(document))
    phases = [row["phase"] for row in document["measured"]["rows"] if row["kind"] == "time"]
    assert phases.count("products") > 30


def test_nccl_tests_are_read_where_they_are(broken):
    """Their times in place, where torch works in place."""
    _, _, document = broken
    [row] = [each for each in document["measured"]["rows"] if each["phase"] == "nccl-tests"]
    assert (row["name"], row["time_us"]) == ("all_reduce of 2 ranks, 1 KiB", 12.1)


def test_what_fails_ends_its_phase_alone(broken):
    """The other phases are measured, and the status says it."""
    status, output, document = broken
    assert status == 1
    copies, collectives = document["measured"]["failures"]
    assert (copies["phase"], collectives["phase"]) == ("copies", "collectives on 2 GPUs")
    assert "unspecified launch failure in (private)" in copies["reason"]
    assert "signal SIGSEGV" in collectives["reason"]
    assert output.count("FAILED") == 2


@pytest.mark.slow  # It waits for the end of the phase's share of time.
def test_what_hangs_is_ended_at_its_limit(bare_kit):
    """The next phase is measured."""
    status, _, document = run(
        bare_kit, "--only", "launches,products", "--limit", "150", STANDIN_FAILURE="launches:hang"
    )
    assert status == 1
    [failure] = document["measured"]["failures"]
    assert (failure["phase"], failure["reason"]) == ("launches", "did not end within 15 s")
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


def test_a_machine_without_gpus_has_a_status_of_its_own(bare_kit, capsys, monkeypatch):
    """And a result that says so, beside that of an earlier run."""
    earlier, out = bare_kit.with_name("none.json"), bare_kit.with_name("none-2.json")
    earlier.write_text("{}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert runpy.run_path(str(bare_kit))["main"](["--out", str(earlier)]) == 4
    assert json.loads(out.read_text())["measured"]["failures"][0]["reason"] == "torch sees no GPU"
    assert out.name in capsys.readouterr().out
    assert earlier.read_text() == "{}"


def test_wrong_words_are_refused(bare_kit, capsys):
    """With the words that are expected; a result that cannot be written at once."""
    main = runpy.run_path(str(bare_kit))["main"]
    for words, told in (
        (["--only", "product"], "expected some of launches, copies, products"),
        (["--limit", "0"], "--limit of 30 s or more"),
        (["--out", "/nowhere/kit.json"], "to fix: --out FILE"),
    ):
        assert main(words) == 2
        assert told in capsys.readouterr().out
