"""torch is what it was before and after; nothing is missing in between."""

import importlib
import inspect
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import distributed_c10d

import simrank
from simrank.errors import UnsupportedError
from simrank.torch import install
from simrank.torch.install import check_version
from tests import leftovers, replaced

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # New names of collectives.


def test_everything_that_is_replaced_is_given_back():
    """By identity."""
    replaced = [(owner, name) for owner, name, _ in install.patches(torch)]
    before = [getattr(owner, name, "missing") for owner, name in replaced]
    with simrank.Context("hgx_h100"):
        assert any(
            getattr(owner, name, "missing") is not old
            for (owner, name), old in zip(replaced, before, strict=True)
        )
    for (owner, name), old in zip(replaced, before, strict=True):
        assert getattr(owner, name, "missing") is old, name


def test_patches_are_made_anew_only_where_torch_is_another(monkeypatch):
    """A program that puts its own function in torch's place finds it asked, and then torch's."""
    name, owner = "is_available", torch.cuda

    def installed():
        return next(value for of, key, value in install.patches(torch) if (of, key) == place)

    def shared():
        made = install.patches(torch)
        return next(of.modules for of, _, _ in made if isinstance(of, install._Shared))

    place = owner, name
    first = installed()
    assert installed() is first
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda: "the program's own")
        assert installed()() == "the program's own"
    assert installed()() is owner.is_available()
    module = sys.modules["torch.distributed.of_a_test"] = type(sys)("torch.distributed.of_a_test")
    try:
        assert module in shared()
    finally:
        del sys.modules[module.__name__]
    assert module not in shared()


FIRST_SPAWN = """
import sys
import torch.distributed as dist
import simrank

def program(rank):
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()

before = set(sys.modules)
simrank.multiprocessing.spawn(program, nprocs=2)
print(*sorted(name for name in set(sys.modules) - before if "simrank" not in name))
"""


def test_a_first_spawn_imports_little(monkeypatch):
    """DTensor and the launchers took twice the time of all the rest; who needs them waits."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    command = [sys.executable, "-c", FIRST_SPAWN]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = run.stdout.split()
    torchs = [name for name in imported if name.startswith("torch.")]
    light = (
        "torch.distributed._functional_collectives",
        "torch.distributed._symmetric_memory",
        "torch._dynamo.config",  # Dynamo's settings, without it.
        "torch.utils._triton",  # Of symmetric memory, since torch 2.14.
    )
    assert all(name.startswith((*light, "torch.distributed.nn")) for name in torchs), torchs
    assert not {"sympy", "triton", "pandas", "matplotlib"} & set(imported)


def test_ranks_are_threads_once_torch_is_imported(spawn):
    """Greenlets otherwise, and a rank of theirs that imports torch is told what to do."""
    carriers = []

    def program(rank):
        import simrank.ranks.current as current

        carriers.append(current.running_task().carrier.thread_id is not None)

    spawn(program)
    spawn(program, carrier="greenlet")
    assert carriers == [True, True, False, False]
    script = (
        "import simrank\n"
        "def rank_main(rank):\n    import torch\n"
        "try:\n    simrank.multiprocessing.spawn(rank_main, nprocs=2)\n"
        "except Exception as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "its carrier is a greenlet" in out.stdout
    assert "--carrier thread" in out.stdout


def test_a_spawn_inside_a_program_makes_simulated_ranks(spawn):
    """`torch.multiprocessing.spawn` in a rank: ranks of ranks."""
    seen = []

    def inner(rank):
        seen.append(rank)

    def program(rank):
        if rank == 0:
            mp.spawn(inner, nprocs=3)

    spawn(program)
    assert sorted(seen) == [0, 1, 2]


def test_a_module_that_holds_the_world_at_its_import_is_there_before_ranks_are(spawn):
    """Or it would hold one rank's."""

    def program(rank):
        dist.init_process_group("gloo")
        module = importlib.import_module("torch.distributed.nn.functional")
        tensor = module.all_reduce(torch.ones(1))
        assert tensor.item() == 2

    spawn(program)


def test_what_is_not_simulated_is_refused_by_name(spawn):
    """RPC talks to real processes."""
    import torch.distributed.rpc as rpc

    def program(rank):
        with pytest.raises(UnsupportedError, match=r"torch\.distributed\.rpc\.init_rpc"):
            rpc.init_rpc("worker", rank=rank, world_size=2)

    spawn(program)


def _launched(factor):
    dist.init_process_group("gloo")
    x = torch.full((1,), factor * (dist.get_rank() + 1))
    dist.all_reduce(x)
    return dist.get_rank(), x.item(), os.environ["LOCAL_RANK"]


def test_a_function_is_launched_on_simulated_ranks_and_a_command_is_refused(spawn):
    """As suites do that test elastic programs: each returns what it has found."""
    from torch.distributed.launcher import LaunchConfig, elastic_launch

    def program(rank):
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", run_id="1",
            rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=1,
        )  # fmt: skip
        found = elastic_launch(config, _launched)(2.0)
        assert found == {r: (r, 6.0, str(r)) for r in range(2)}
        with pytest.raises(
            UnsupportedError, match=r"command 'python' .*\n  to fix: give it a func"
        ):
            elastic_launch(config, "python")("script.py")

    spawn(program, 1)


def test_functions_that_a_rank_replaces_are_its_own(spawn):
    """Of torch.distributed: wrapped, wrapped again by mock, put back or left; at waits, too."""
    from unittest import mock

    calls = {}

    def program(rank):
        dist.init_process_group("gloo")
        original, seen = dist.all_reduce, calls.setdefault(rank, [])

        def counted(*args, **kwargs):
            seen.append(rank)
            return original(*args, **kwargs)

        dist.all_reduce = counted
        for _ in range(2):
            dist.all_reduce(torch.ones(1))
        with mock.patch.object(dist, "all_reduce", original):
            dist.all_reduce(torch.ones(1))
            assert dist.all_reduce is original
        assert dist.all_reduce is counted
        dist.barrier()
        assert dist.all_reduce is counted
        if rank == 0:
            dist.all_reduce = original
        dist.barrier()
        assert dist.all_reduce is (original if rank == 0 else counted)
        dist.of_nobody = rank
        dist.barrier()
        assert dist.of_nobody == rank

    before = dist.all_reduce
    spawn(program, 3)
    assert calls == {rank: [rank, rank] for rank in range(3)}
    assert dist.all_reduce is before
    assert not hasattr(dist, "of_nobody")
    assert type(dist) is type(torch.nn)


def test_what_a_rank_replaces_in_torch_is_its_own(spawn):
    """A function that every rank wraps is wrapped once, and a block's is not seen by others."""
    seen = {}

    def program(rank):
        dist.init_process_group("gloo")
        original = torch.nn.functional.linear
        torch.nn.functional.linear = lambda *args: 2 * original(*args)
        if rank == 0:
            zeros = torch.zeros
            torch.zeros = torch.ones
            dist.barrier()
            torch.zeros = zeros
        else:
            dist.barrier()
        one = torch.ones(1, 1)
        layer = torch.nn.Linear(1, 1, bias=False)
        layer.weight.data.fill_(1)
        seen[rank] = layer(one).item(), torch.zeros(1).item(), torch.nn.functional.linear
        if rank == 1:
            dist.barrier(dist.new_group([1]))
        assert torch.nn.functional.linear is seen[rank][2]

    before = torch.nn.functional.linear
    spawn(program, 3)
    assert [seen[rank][:2] for rank in range(3)] == [(2, 0)] * 3
    assert torch.nn.functional.linear is before


def test_a_reducer_keeps_the_work_it_waits_for(spawn):
    """DDP's join hands C++ a work and forgets it: with half of it gone, backward slept for ever."""
    grads = []

    def program(rank):
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        with model.join(divide_by_initial_world_size=False):
            for _ in range(1 + rank):
                model.zero_grad()
                model(torch.full((1, 1), 2.0 + rank)).backward()
                grads.append((rank, model.module.weight.grad.item()))

    spawn(program)
    assert sorted(grads) == [(0, 2.5), (1, 2.5), (1, 3.0)]  # Divided by those who take part.


def test_each_rank_has_the_model_whose_forward_is_active_for_itself(spawn):
    """Forwards of ranks interleave, and each restores what it found: none leaks to another rank."""
    kind = torch.nn.parallel.DistributedDataParallel
    seen = {}

    def program(rank):
        dist.init_process_group("gloo")
        inner = torch.nn.Linear(2, 2)
        model = kind(torch.nn.Sequential(inner))

        def look(*_):
            dist.barrier()
            seen[rank, "inside"] = kind._active_ddp_module is model

        inner.register_forward_pre_hook(look)
        model(torch.ones(2, 2))
        seen[rank, "after"] = kind._active_ddp_module
        dist.barrier()
        seen[rank, "at last"] = kind._active_ddp_module

    spawn(program)
    assert kind._active_ddp_module is None
    assert {value for (_, when), value in seen.items() if when == "inside"} == {True}
    assert {value for (_, when), value in seen.items() if when != "inside"} == {None}


def test_a_file_of_the_program_that_hides_torch_is_named(tmp_path):
    """With what to do; status 1, and no traceback."""
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "train.py").write_text("import torch\n")
    command = [sys.executable, "-m", "simrank", "run", "--nproc-per-node", "2", "train.py"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-2:] == [
        f"`import torch` finds {tmp_path / 'torch.py'}, which hides the installed package torch",
        f"  to fix: rename {tmp_path / 'torch.py'}",
    ]


def test_an_untested_release_is_named_once(monkeypatch, tmp_path):
    """With those that are; a patch release of a tested one is no news."""
    monkeypatch.setenv("SIMRANK_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "__version__", "2.99.1+cpu")
    with pytest.warns(UserWarning, match=r"tested with torch 2\.12\.1, .*, not with 2\.99\.1"):
        check_version(torch)
    check_version(torch)  # A warning is an error here.
    monkeypatch.setattr(torch, "__version__", "2.13.7")
    check_version(torch)


def test_a_new_parameter_of_a_replaced_function_is_refused_before_ranks_start(monkeypatch):
    """One error that names it, not a TypeError in a rank."""
    original = distributed_c10d._new_process_group_helper

    def _new_process_group_helper(*args, mode_of_2_99=None, **kwargs):
        return original(*args, **kwargs)

    signature = inspect.signature(original)
    added = inspect.Parameter("mode_of_2_99", inspect.Parameter.KEYWORD_ONLY, default=None)
    _new_process_group_helper.__signature__ = signature.replace(
        parameters=[*signature.parameters.values(), added]
    )
    monkeypatch.setattr(distributed_c10d, "_new_process_group_helper", _new_process_group_helper)
    with pytest.raises(UnsupportedError) as caught, simrank.Context():
        pass
    assert (
        "  torch.distributed.distributed_c10d._new_process_group_helper: "
        "unknown parameter mode_of_2_99\n"
    ) in str(caught.value)


def test_a_replaced_name_that_is_gone_is_refused_before_ranks_start(monkeypatch):
    """The error names it."""
    monkeypatch.delattr(distributed_c10d, "_check_single_backend_availability")
    with (
        pytest.raises(UnsupportedError, match="no attribute '_check_single_backend_availability'"),
        simrank.Context(),
    ):
        pass


@pytest.mark.slow
def test_fifty_contexts_leave_torch_as_it_was(monkeypatch, tmp_path):
    """Each attribute of its modules, classes and objects, and each flag, is what it was."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    changes, ends = leftovers.changes_of(tmp_path, 50, "--torch")
    assert changes == {}
    assert ends["trains"] == ends["compiles"] == [None, None, None]
    assert set(ends["waits_in_torch"]) == {"DeadlockError"}
    assert set(ends["sets_flags"]) == set(ends["enters_with_torch"]) == {"SpawnException"}


@pytest.mark.slow
def test_names_that_are_replaced_are_listed(monkeypatch):
    """`python tests/replaced.py` writes the list and the table of docs/rank-state.md."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    lines = replaced.LISTED.read_text().splitlines()
    assert replaced.page_with(lines) == replaced.PAGE.read_text()
    releases, found = replaced.found_now()
    if releases != lines[0]:
        pytest.skip(f"the list is of {lines[0]}")
    assert set(found) - set(lines) == set()


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_built_in_hooks_of_ddp_average_gradients(spawn, backend):
    """C++'s own read futures of its types, which those of Python are not."""
    seen = []

    def program(rank):
        dist.init_process_group(backend)
        device = "cpu" if backend == "gloo" else f"cuda:{rank}"
        for kind in ("ALLREDUCE", "FP16_COMPRESS"):
            layer = torch.nn.Linear(2, 2, bias=False, device=device)
            model = torch.nn.parallel.DistributedDataParallel(layer)
            model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, kind))
            with pytest.raises(RuntimeError, match="can only be called once"):
                model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
            model(torch.full((1, 2), rank + 1.0, device=device)).sum().backward()
            assert model._get_ddp_logging_data()["comm_hook"]
            seen.append((layer.weight.grad.dtype, layer.weight.grad.tolist()))

    spawn(program)
    assert seen == [(torch.float32, [[1.5, 1.5]] * 2)] * 4
