"""Every program runs as a script where torchrun stands, as a test on ranks, and as it is meant."""

import contextlib
import importlib.util
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import simrank
from simrank.cli import main
from simrank.errors import SimrankError, SpawnException

HERE = Path(__file__).parent
NEEDS_TRITON = {"triton_add"}
PROGRAMS = sorted(
    path.stem
    for path in HERE.glob("*.py")
    if not path.stem.startswith(("_", "test_"))
    and (path.stem not in NEEDS_TRITON or importlib.util.find_spec("triton"))
)
PLANTED = {  # A program, a line of it, what stands there instead, and what it is found as.
    "a rank leaves early": (
        "mesh",
        "    dist.all_reduce(x, group=tensor_group)\n",
        "    if rank == 1:\n        return\n    dist.all_reduce(x, group=tensor_group)\n",
        "deadlock (proved)",
    ),
    "a wait is forgotten": ("streams", "    work.wait()\n", "", "race (proved)"),
    "a bucket is read too early": ("data_parallel", "self.work.wait()", "pass", "race (proved)"),
    "sizes differ": ("experts", "sizes_in, sizes_out = received.tolist(), sent.tolist()",
        "sizes_in, sizes_out = received.tolist()[::-1], sent.tolist()", "mismatch (proved)"),
    "groups are made in another order": ("mesh", "for column in range(TENSOR):",
        "for column in sorted(range(TENSOR), reverse=rank == 2):", "mismatch (proved)"),
    "the root differs": ("objects", "broadcast_object_list(config, src=0)",
        "broadcast_object_list(config, src=rank // 3)", "mismatch (proved)"),
    "an event is not waited for": ("streams", "wait_event(copied)", "record_event()",
        "race (proved)"),
    "a barrier is missing": ("symmetric", "    handle.barrier(channel=0)\n", "", "race"),
    "the device is not set": ("data_parallel",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', "pass", "Duplicate GPU detected"),
    "sends need buffers": ("ring_exchange", "(rank - 1) % world_size", "(rank + 2) % world_size",
        "deadlock (proved)"),
    "a work is dropped": ("mesh", "dist.all_reduce(x, group=data_group)",
        "dist.all_reduce(x.clone(), group=data_group, async_op=True)", "AssertionError"),
    "an assertion fails": ("megatron_mlp", "atol=1e-4", "atol=1e-4) and torch.equal(y, -whole",
        "AssertionError"),
}  # fmt: skip


def run_cli(*args):
    """Run the command line in this process; return its status and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(["run", *args])
        except SystemExit as error:
            return error.code or 0, out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_script_runs_where_torchrun_stands(program, num_ranks):
    """Under strict, with races as errors: nothing is found in a right program."""
    options = ("--nproc-per-node", str(num_ranks), "--strict", "--races", "error")
    status, out, err = run_cli(*options, str(HERE / f"{program}.py"))
    assert status == 0, err
    assert len(out.splitlines()) == 1, "one rank prints"
    for word in ("never", "race", "leak", "suspected"):
        assert word not in err


@pytest.mark.parametrize("options", [{}, {"strict": True, "races": "error"}, {"carrier": "thread"}])
@pytest.mark.parametrize("program", PROGRAMS)
def test_its_main_runs_as_a_function_of_spawn(program, options):
    """As a test of a library would call it."""
    names = runpy.run_path(str(HERE / f"{program}.py"))

    def on_rank(rank):
        os.environ["LOCAL_RANK"] = str(rank)
        names["main"]()

    with contextlib.redirect_stdout(io.StringIO()):
        context = simrank.Context("hgx_h100", **{k: v for k, v in options.items() if k != "strict"})
        with context as ctx:
            ctx.multiprocessing.spawn(on_rank, nprocs=4)
    assert ctx.findings == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_planted_in_it_is_found(name, tmp_path):
    """In the first run, by its kind, with a line of the program."""
    program, right, wrong, reported = PLANTED[name]
    source = (HERE / f"{program}.py").read_text()
    assert right in source, "the line that is replaced"
    script = tmp_path / f"{program}.py"
    script.write_text(source.replace(right, wrong, 1))
    options = ("--nproc-per-node", "4", "--strict", "--races", "error")
    status, _, err = run_cli(*options, str(script))
    assert status == 1
    assert reported in err
    assert f"{program}.py" in err


def test_functions_of_a_notebook_run_with_what_its_cells_defined():
    """Cells are executed one after the other, in one namespace; a failing one can be mended."""
    names = {"__name__": "__main__"}
    cells = [
        "import simrank as torch, simrank.distributed as dist, simrank",
        "def step(rank, scale):\n    dist.init_process_group('nccl')\n"
        "    x = torch.full((4,), scale * rank)\n    dist.all_reduce(x, group=undefined)\n",
        "def step(rank, scale):\n    dist.init_process_group('nccl')\n"
        "    x = torch.full((4,), scale * rank)\n    dist.all_reduce(x)\n"
        "    sums.append(x.tolist())\n",
    ]
    names["sums"] = []
    exec(compile(cells[0], "<ipython-input-1>", "exec"), names)
    exec(compile(cells[1], "<ipython-input-2>", "exec"), names)
    with simrank.Context() as ctx:
        with pytest.raises(SpawnException, match="undefined"):
            ctx.multiprocessing.spawn(names["step"], (2.0,), nprocs=4)
        exec(compile(cells[2], "<ipython-input-3>", "exec"), names)
        ctx.multiprocessing.spawn(names["step"], (2.0,), nprocs=4)
    assert names["sums"] == [[12.0] * 4] * 4


@pytest.mark.slow
def test_a_breakpoint_in_a_script_stops_every_rank_at_its_own(tmp_path):
    """At a terminal, with commands typed in."""
    source = (HERE / "ring_exchange.py").read_text()
    script = tmp_path / "ring_exchange.py"
    script.write_text(
        source.replace("    for step in range", "    breakpoint()\n    for step in range")
    )
    command = [sys.executable, "-m", "simrank.cli", "run", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        command, input="p rank\nn\nc\n" * 2, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.count("(Pdb) 0\n") == done.stdout.count("(Pdb) 1\n") == 1
    assert "all blocks seen" in done.stdout


def test_every_program_says_what_it_is():
    """New users read them."""
    assert len(PROGRAMS) >= 9
    for program in PROGRAMS:
        assert (HERE / f"{program}.py").read_text().startswith('"""')
    assert issubclass(SpawnException, SimrankError)
