"""All checks run a program under another hash seed, and compare the calls of each rank."""

import pytest

PROGRAM = """
import os, sys, simrank, simrank.distributed as dist
dist.init_process_group()
x = simrank.ones(4, device=f"cuda:{dist.get_rank()}")
by_name = {"sum": dist.all_reduce, "max": lambda t: dist.broadcast(t, 0)}
is_other = os.environ.get("PYTHONHASHSEED") == "1"
order = sorted(by_name, reverse=is_other and not IS_RIGHT)
for name in order:
    by_name[name](x)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_right", [True, False])
def test_an_order_of_calls_that_depends_on_the_hash_seed_is_an_error(
    is_right, tmp_path, cli, monkeypatch
):
    """The error names both calls with their lines; a sorted order passes."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    path = tmp_path / "order.py"
    path.write_text(PROGRAM.replace("IS_RIGHT", str(is_right)))
    status, _, err = cli("run", "--nproc-per-node", 2, "--checks", "all", path)
    if is_right:
        assert status == 0
        return
    assert status == 1
    assert "calls depend on the hash seed (proved): with PYTHONHASHSEED=1 rank 0" in err
    assert "all_reduce at order.py:5" in err or "broadcast at order.py:5" in err


RESUMES = """
import os, simrank, simrank.distributed as dist
dist.init_process_group()
rank = dist.get_rank()
x = simrank.ones(4, device=f"cuda:{rank}")
if os.path.exists("saved"):
    FURTHER
dist.barrier()
dist.all_reduce(x)
if rank == 0:
    with open("saved", "a") as file:
        file.write("x")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("further", "said"),
    [
        ("dist.broadcast(x, 0)", "a further run of the program makes other calls"),
        ("raise OSError", "a further run of the program fails, with every hash seed"),
        (
            "x = simrank.ones(os.path.getsize('saved'), device=x.device)",
            "further runs of the program make other",
        ),
    ],
)
def test_a_program_that_resumes_from_a_file_is_not_said_to_depend_on_hash_seeds(
    further, said, tmp_path, cli, monkeypatch
):
    """Its second run goes on where the first has ended, under every seed: a remark says so."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "resumes.py"
    path.write_text(RESUMES.replace("FURTHER", further))
    status, _, err = cli("run", "--nproc-per-node", 2, "--checks", "all", path)
    assert status == 0, err
    assert said in err
