"""What torch keeps for the process is each rank's own, and nobody's afterwards."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce, wait_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.checkpoint import set_checkpoint_early_stop

from simrank.isolation.torch_settings import settings
from simrank.ranks import current
from simrank.torch.rank_state.settings import settings_of


@pytest.fixture(autouse=True)
def may_set_flags(monkeypatch):
    """Let flags be set: torch's own helpers for tests forbid it in their process."""
    names = torch.backends.disable_global_flags.__globals__
    monkeypatch.setitem(names, "__allow_nonbracketed_mutation_flag", True)


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


def test_each_way_to_allow_tf32_is_seen_by_its_rank_only(spawn, monkeypatch):
    """Old and new settings, also mixed ones, which torch does not return."""
    # A test that imports torch's own suite forbids changes for the process.
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)
    before = [setting.get() for setting in settings()]
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn

    def program(rank):
        dist.init_process_group("gloo")
        if rank == 0:
            matmul.allow_tf32 = True
        elif rank == 1:
            matmul.fp32_precision = "tf32"
        elif rank == 2:
            cudnn.allow_tf32 = False
        dist.barrier()
        assert (matmul.fp32_precision == "tf32") == (rank < 2)
        assert (cudnn.conv.fp32_precision == "tf32") == (rank != 2)
        if rank != 1:
            assert torch.get_float32_matmul_precision() == ("highest" if rank else "high")
        dist.barrier()

    spawn(program, 4)
    assert [setting.get() for setting in settings()] == before


def test_flags_that_a_block_sets_are_restored_after_a_wait(spawn):
    """Each rank has a block of its own; a restored flag is no longer swapped."""
    before = [setting.get() for setting in settings()]

    def program(rank):
        dist.init_process_group("gloo")
        backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        torch.set_num_interop_threads(3 + rank)
        torch.hub.set_dir(f"of rank {rank}")
        with sdpa_kernel(backends[rank]), set_checkpoint_early_stop(bool(rank)):
            torch.backends.cudnn.benchmark = rank == 1
            dist.barrier()
            assert torch.backends.cuda.math_sdp_enabled() == (rank == 1)
            assert torch.utils.checkpoint._enable_checkpoint_early_stop == bool(rank)
        dist.barrier()
        assert torch.backends.cudnn.benchmark == (rank == 1)
        assert torch.backends.cuda.math_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
        assert torch.hub.get_dir() == f"of rank {rank}"
        assert torch.get_num_interop_threads() == 3 + rank
        assert len(settings_of(current.rank_program())._own) == 1 + rank

    spawn(program)
    assert [setting.get() for setting in settings()] == before


def test_older_and_newer_settings_of_precision_are_restored_together(spawn):
    """Those by backend that a rank has not set still follow the general one."""

    def program(rank):
        dist.init_process_group("gloo")
        general = functools.partial(torch._C._set_fp32_precision_setter, "generic", "all")
        if rank == 0:
            torch.backends.cudnn.allow_tf32 = False
        else:
            general("tf32")
        dist.barrier()
        if rank == 1:
            assert torch.backends.mkldnn.matmul.fp32_precision == "tf32"
            general("none")
        assert torch.backends.mkldnn.matmul.fp32_precision == "none"
        assert torch.backends.cudnn.allow_tf32 == (rank == 1)

    spawn(program)


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


def test_hooks_for_all_modules_are_the_ranks_own(spawn):
    """Trackers and debug modes register them; those of the main program stay what they are."""
    calls = []

    def program(rank):
        dist.init_process_group("gloo")
        model = torch.nn.Linear(2, 2)
        if rank == 1:
            handle = register_module_forward_hook(lambda *_: calls.append(1))
        dist.barrier()
        model(torch.ones(1, 2))
        dist.barrier()
        if rank == 1:
            handle.remove()
        dist.barrier()
        model(torch.ones(1, 2))

    outer = register_module_forward_pre_hook(lambda *_: calls.append("main"))
    try:
        spawn(program, 3)
        torch.nn.Identity()(0)
    finally:
        outer.remove()
    assert calls.count(1) == 1
    assert calls.count("main") == 3 * 2 + 1


def test_calls_are_counted_by_torchs_debug_mode(spawn):
    """Of the rank, while others make theirs."""
    counts = {}

    def program(rank):
        dist.init_process_group("gloo")
        model = torch.nn.Linear(4, 4)
        with CommDebugMode() as mode:
            x = model(torch.ones(2, 4)).detach()
            dist.barrier()
            wait_tensor(all_reduce(x, "sum", dist.group.WORLD))
        counts[rank] = mode.get_total_counts()

    spawn(program, 3)
    assert counts == {0: 1, 1: 1, 2: 1}
