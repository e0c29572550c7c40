"""Torch programs without values: the same time and memory, and no silent number."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import warnings

import pytest
import torch

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import torch.distributed as dist

import simrank
import simrank.torch
from simrank.device.stated_values import StatedValues
from simrank.errors import UnknownValueError
from tests.torch.collectives import all_gather_single
from tests.torch.devices.valueless_programs import PROGRAMS, WORLD


def _measured(rank, found):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for name, run in PROGRAMS.items():
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(3)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        try:
            result = run(rank)
        except UnknownValueError as error:
            result = error
        end.record()
        torch.cuda.synchronize()
        drawn = torch.cuda.get_rng_state().tolist()
        found[name, rank] = (
            result,
            round(start.elapsed_time(end) * 1e9),
            torch.cuda.max_memory_allocated(),
            torch.cuda.max_memory_reserved(),
            drawn,
        )
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def measured():
    """Return results, times and memory of each program on each rank, with and without values.

    Without Python's collector of cycles, which frees tensors when it has seen enough objects.
    """
    found = {True: {}, False: {}}
    gc.collect()
    gc.disable()
    for data, kept in found.items():
        settings = {"data": data, "checks": "off"}  # What is looked at is submitted one by one.
        with warnings.catch_warnings(), simrank.Context.for_ranks(WORLD, **settings) as context:
            warnings.simplefilter("ignore")
            context.multiprocessing.spawn(_measured, (kept,), WORLD, share_args=True)
    gc.enable()
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_take_the_same_time_and_memory(measured, name):
    """To the picosecond and the byte, with the same random numbers drawn, on every rank."""
    for rank in range(WORLD):
        assert measured[False][name, rank] == measured[True][name, rank]


@pytest.fixture
def run():
    """Run a program on one rank without values."""

    def run(function, *args, **settings):
        with simrank.Context.for_ranks(1, data=False, **settings) as context:
            context.multiprocessing.spawn(function, args, 1, share_args=True)
        return context

    return run


def _big():
    return torch.randn(512, 512, device="cuda")


def _small_but_unknown():
    return _big().sum()


READINGS = {
    "item": lambda: _small_but_unknown().item(),
    "item of an element": lambda: _big().select(0, 0)[0].item(),  # noqa: PLW0108
    "condition": lambda: bool((_big() > 0).any()),
    "cpu": lambda: repr(_big().cpu()),
    "tolist": lambda: _big().tolist(),
    "numpy": lambda: _big().cpu().numpy(),
    "print": lambda: repr(_big()),
    "argmax": lambda: _big().argmax().item(),
    "unique": lambda: _big().unique(),
    "nonzero": lambda: _big().nonzero(),
    "mask": lambda: _big()[_big() > 0],
    "masked_select": lambda: _big().masked_select(_big() > 0),
    "repeat_interleave": lambda: torch.repeat_interleave(_big()[0], (_big()[0] > 0).long()),
    "one_hot": lambda: torch.nn.functional.one_hot(_big()[0].long()),
    "equal": lambda: torch.equal(_big(), _big()),
    "allclose": lambda: torch.allclose(_big(), _big()),
    "bincount": lambda: torch.bincount(_big()[0].long()),
    "in place": lambda: torch.zeros(4, device="cuda").add_(_small_but_unknown()).sum().item(),
    "pinned": lambda: float(torch.empty(512, 512, pin_memory=True).copy_(_big())[0, 0]),
    "offloaded arithmetic": lambda: (_big().cpu() * 2).sum().item(),
    "storage": lambda: _big().cpu().untyped_storage()[0],
}


@pytest.mark.parametrize("name", READINGS)
def test_a_reading_of_what_is_unknown_is_refused_with_both_lines(run, name):
    """The error names the line that reads, and the operator and line that lost the values."""

    def program(_rank):
        torch.cuda.set_device(0)
        with pytest.raises(UnknownValueError) as caught:
            READINGS[name]()
        errors.append(caught.value)

    errors = []
    run(program)
    (error,) = errors
    assert "test_unknown_values.py" in error.read_at
    assert "test_unknown_values.py" in error.created_at
    assert error.lost_by
    assert "--unknown" in str(error)


@pytest.mark.parametrize("name", READINGS)
def test_a_stated_value_is_read_and_counted(run, name):
    """Every reading goes on with it, and the run knows at which lines."""
    from simrank.torch.devices import unknown_values

    def program(_rank):
        torch.cuda.set_device(0)
        READINGS[name]()

    context = run(program, unknown=1)
    counted = unknown_values.counted(context)
    assert counted
    assert all("test_unknown_values.py" in line for line in counted)


def test_a_line_has_a_value_of_its_own(run):
    """All others have that of the run; a line that read none is named."""
    found = []

    def program(_rank):
        torch.cuda.set_device(0)
        found.append(_small_but_unknown().item())
        found.append(_small_but_unknown().item())

    read, unread = program.__code__.co_firstlineno + 2, _big.__code__.co_firstlineno
    name = "test_unknown_values.py"
    stated = StatedValues(1.0, {f"{name}:{read}": 5.0, f"{name}:{unread}": 2.0})
    context = run(program, unknown=stated)
    assert found == [5.0, 1.0]
    remarks = [each for each in context.engine.remarks if "no unknown value" in each]
    assert remarks == [
        f"no unknown value was read at {name}:{unread}, for which --unknown states one"
    ]


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True, "capturable": True}])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_an_optimizer_takes_a_rate_that_is_an_unknown_tensor(run, kind, options):
    """It has no Meta kernel for such a rate, and needs none: it writes what it was given."""

    def program(_rank):
        torch.cuda.set_device(0)
        weight = torch.nn.Parameter(_big())
        optimizer = kind([weight], lr=torch.tensor(1e-3, device="cuda"), **options)
        optimizer.param_groups[0]["lr"] = _small_but_unknown()
        (weight * weight).sum().backward()
        optimizer.step()
        with pytest.raises(UnknownValueError):
            weight[0, 0].item()
        seen.append(True)

    seen = []
    run(program)
    assert seen == [True]


def test_what_is_known_lives(run):
    """Small tensors, integers of a few MiB, parts of tensors, what is written over, collectives."""

    def program(_rank):
        torch.cuda.set_device(0)
        assert torch.arange(10, device="cuda").sum().item() == 45
        assert torch.arange(100_000).cuda()[5].item() == 5
        assert torch.tensor([3, 4, 5], device="cuda").cumsum(0).tolist() == [3, 7, 12]
        slots = torch.zeros(4, device="cuda")
        slots[0], slots[1] = _small_but_unknown(), 7
        assert slots[1].item() == 7
        both = torch.cat([_small_but_unknown()[None], torch.ones(1, device="cuda")])
        assert both[1].item() == 1
        slots.copy_(_big()[0, :4])
        slots.zero_()
        assert slots.tolist() == [0] * 4
        known = torch.arange(8, device="cuda") % 2 == 0
        assert _big()[:8][known].shape == (4, 512)
        router = _big().softmax(-1)
        simrank.torch.assume(router, 0.5)
        assert router[3, 3].item() == 0.5
        expert = router.argmax(-1)
        simrank.torch.assume(expert, torch.arange(512) % 4)
        assert torch.bincount(expert).tolist() == [128] * 4
        seen.append(True)

    seen = []
    run(program)
    assert seen


def test_a_collective_keeps_the_elements_that_are_known(spawn):
    """SyncBatchNorm packs a count beside means that are unknown."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        packed = torch.cat([_small_but_unknown()[None], torch.full((1,), rank, device="cuda")])
        parts = torch.empty(4, device="cuda")
        all_gather_single(parts, packed)
        counts.append((parts[1].item(), parts[3].item()))
        with pytest.raises(UnknownValueError):
            parts[2].item()

    counts = []
    spawn(program, 2, data=False)
    assert counts == [(0, 1)] * 2


def test_a_model_that_is_built_on_the_host_costs_no_memory(run):
    """Neither initialisation nor the move to the device touches its memory."""
    import resource

    def program(_rank):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        model = torch.nn.Linear(1 << 15, 1 << 14)  # 2 GiB.
        model.cuda()(torch.ones(1, 1 << 15, device="cuda"))
        grown.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

    grown = []
    run(program)
    assert grown[0] < 1 << 19  # KiB.


def test_native_code_that_reads_unknown_memory_ends_the_program():
    """With a report of the operator that lost the values, and the line; not with a number."""
    text = (
        "import ctypes, simrank, torch\n"
        "def program(rank):\n"
        "    big = torch.randn(512, 512, device='cuda')\n"
        "    print(ctypes.c_float.from_address(big.data_ptr()).value)\n"
        "with simrank.Context.for_ranks(1, data=False) as context:\n"
        "    context.multiprocessing.spawn(program, nprocs=1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False
    )
    assert ended.returncode < 0
    assert "no values in this run (data=False); they were lost in normal_" in ended.stderr
    assert "line 4 in program" in ended.stderr
    assert not ended.stdout


def test_memory_runs_out_as_with_values(run):
    """The error names the lines, and the peak is the same."""

    def program(_rank):
        held = [torch.empty(30 << 30, dtype=torch.uint8, device="cuda") for _ in range(2)]
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
        texts.append(str(caught.value))
        del held

    texts = []
    run(program)
    assert "test_unknown_values.py" in texts[0]
    assert "to see how much it needs: simrank run --set memory=317GiB" in texts[0]


def test_with_data_an_assumption_changes_nothing(spawn):
    """A program says it once and runs both ways."""

    def program(_rank):
        x = torch.ones(4, device="cuda")
        simrank.torch.assume(x, 3.0)
        seen.append(x.tolist())

    seen = []
    spawn(program, 1)
    assert seen == [[1.0] * 4]


def _exchange_objects(rank, found):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    listed = [None] * dist.get_world_size()
    dist.all_gather_object(listed, (rank, "x" * 20_000))
    found[rank] = [number for number, _ in listed]
    dist.destroy_process_group()


def test_objects_larger_than_small_tensors_travel_without_values():
    """Pickled bytes are integers: eight ranks' of 20 KB together are 160 KB."""
    found = {}
    with simrank.Context.for_ranks(8, data=False) as ctx:
        ctx.multiprocessing.spawn(_exchange_objects, (found,), nprocs=8, share_args=True)
    assert found == {rank: list(range(8)) for rank in range(8)}


def test_nothing_is_broken_without_values(run):
    """Checks for NaN and infinity, as torch and programs spell them; no other boolean."""

    def program(rank):
        x = torch.randn(1 << 20, device="cuda")
        loss, weight = x.mean(), torch.nn.Parameter(torch.randn(1024, 1024, device="cuda"))
        whole = torch.isfinite(x)
        answers = [
            torch.isnan(x).any(), torch.isinf(loss), (~whole).any(), (x != x).any(),
            torch.isnan(x).any() | torch.isinf(x).any(), whole.all().logical_not(),
        ]  # fmt: skip
        assert not any(bool(each) for each in answers)
        assert all(bool(each) for each in (whole.all(), torch.isfinite(loss).cpu(), (x == x).all()))
        (weight * weight).sum().backward()
        torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
        scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.SGD([weight], lr=0.1)
        scaler.scale((weight * weight).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        with pytest.raises(UnknownValueError):
            weight.grad[0, 0].item()
        with pytest.raises(UnknownValueError):
            bool((x > 0).any())
        stops = torch.ones((), dtype=torch.bool, device="cuda")
        for mixed in ((torch.isnan(x) | (x > 0)).any(), torch.isnan(x).any() | stops):
            with pytest.raises(UnknownValueError):
                bool(mixed)

    run(program)
