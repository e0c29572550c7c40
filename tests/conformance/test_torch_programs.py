"""Every torch program gives on simulated ranks what it gives on real gloo processes."""

import importlib.util
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import simrank

torch = pytest.importorskip("torch", reason="torch is not installed")

PROGRAMS = Path(__file__).with_name("torch_programs.py")
SLOW_WORLDS = [pytest.param(world, marks=pytest.mark.slow) for world in (4, 8)]


def load():
    """Import the programs, which are no package."""
    if "torch_programs" not in sys.modules:
        spec = importlib.util.spec_from_file_location("torch_programs", PROGRAMS)
        sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[spec.name])
    return sys.modules["torch_programs"]


NAMES = list(load().PROGRAMS)


def run_one(name, rank, world, file=None):
    """Run a program on one rank, simulated or real, with a group of its own."""
    import torch.distributed as dist

    logging.getLogger("torch").setLevel(logging.ERROR)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Nobody has a GPU, here or there.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if file is None:
            dist.init_process_group("gloo")
        else:
            store = dist.FileStore(str(file), world)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        result = load().PROGRAMS[name](rank, world)
        dist.barrier()
        dist.destroy_process_group()
    return result


def run_really(rank, world, folder):
    """Run all programs on one real process; called in it."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    for number, name in enumerate(NAMES):
        try:
            result = run_one(name, rank, world, folder / f"store {number}")
        except Exception as error:  # The other programs shall run; the test says so.
            result = f"raised {error!r}"
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
        torch.save(result, folder / f"{rank} {number}")


_START = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import torch.multiprocessing
import test_torch_programs as tests
if __name__ == "__main__":
    torch.multiprocessing.spawn(tests.run_really, ({world}, Path({out!r})), {world})
"""


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """Return the results of real processes, by world size; run at first use."""
    known = {}

    def results(world):
        if world not in known:
            out = tmp_path_factory.mktemp(f"real{world}")
            script = out / "start.py"
            folder = str(Path(__file__).parent)
            text = _START.format(folder=folder, world=world, out=str(out))
            script.write_text(text)
            subprocess.run([sys.executable, script], check=True, timeout=1500)
            known[world] = [
                [torch.load(out / f"{rank} {number}", weights_only=False) for rank in range(world)]
                for number in range(len(NAMES))
            ]
        return known[world]

    return results


def simulated(name, world, **settings):
    """Return a program's results on simulated ranks."""
    results = [None] * world

    def rank_main(rank):
        results[rank] = run_one(name, rank, world)

    with simrank.Context.for_ranks(world, **settings) as context:
        context.multiprocessing.spawn(rank_main, nprocs=world)
    return results


def check_equal(ours, theirs, where):
    """Compare nested results; numbers within what the order of a sum changes."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            check_equal(ours[key], theirs[key], f"{where} {key}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), where
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            check_equal(one, other, f"{where} [{index}]")
    elif isinstance(ours, torch.Tensor):
        assert ours.shape == theirs.shape, where
        assert ours.dtype == theirs.dtype, where
        is_wide = ours.dtype in (torch.float64, torch.complex128)
        exact = (1e-9, 1e-11) if is_wide else (1e-4, 1e-5)
        assert torch.allclose(ours, theirs, *exact), f"{where}: {ours} != {theirs}"
    else:
        assert ours == theirs, where


@pytest.mark.parametrize("world", [2, *SLOW_WORLDS])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(1800)  # The first starts the real processes for all.
def test_a_program_gives_what_real_processes_give(name, world, real):
    """Every tensor, object and flag of every rank; strict and with races as errors."""
    theirs = real(world)[NAMES.index(name)]
    ours = simulated(name, world, races="error")
    for rank in range(world):
        assert isinstance(theirs[rank], dict), theirs[rank]
        check_equal(ours[rank], theirs[rank], f"{name}, rank {rank} of {world}:")
