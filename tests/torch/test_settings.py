"""What torch keeps for the process is each rank's own, and nobody's afterwards."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402

from simrank.torch.settings import settings  # noqa: E402


def test_each_setting_is_seen_by_the_rank_that_made_it_only(spawn):
    """Through waits, and the process has its own again at the end."""
    before = [setting.get() for setting in settings()]

    def program(rank):
        dist.init_process_group("gloo")
        if rank == 1:
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.set_float32_matmul_precision("medium")
            torch.set_printoptions(precision=2)
            torch.autograd.set_detect_anomaly(True)
        dist.barrier()
        mine = rank == 1
        assert torch.ones(1).dtype == (torch.float64 if mine else torch.float32)
        assert torch.are_deterministic_algorithms_enabled() == mine
        assert torch.get_float32_matmul_precision() == ("medium" if mine else "highest")
        assert ("0.3333" in str(torch.tensor(1 / 3))) != mine
        assert torch.is_anomaly_enabled() == mine
        dist.barrier()

    spawn(program, 3)
    assert [setting.get() for setting in settings()] == before


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_block_may_span_a_wait(spawn):
    """Entered by one rank, left by it."""

    def program(rank):
        dist.init_process_group("gloo")
        if rank == 0:
            with torch.autograd.detect_anomaly():
                dist.barrier()
                assert torch.is_anomaly_enabled()
        else:
            dist.barrier()
        assert not torch.is_anomaly_enabled()

    spawn(program)
    assert not torch.is_anomaly_enabled()


def test_hooks_of_all_modules_are_those_of_the_rank_that_registers_them(spawn):
    """A tracker of modules sees its own rank's calls only; the handle takes the hook back."""
    modules, seen = torch.nn.modules.module, []

    def program(rank):
        dist.init_process_group("gloo")
        handle = modules.register_module_forward_pre_hook(lambda *_: seen.append(rank))
        dist.barrier()
        model = torch.nn.Linear(1, 1)
        model(torch.ones(1))
        dist.barrier()
        handle.remove()
        model(torch.ones(1))

    spawn(program, 3)
    assert sorted(seen) == [0, 1, 2]
    assert not modules._global_forward_pre_hooks
