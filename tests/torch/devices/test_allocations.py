"""Races of torch's operations on devices (D5), and blocks that are given out too soon (D7)."""

import shutil

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from simrank.errors import RaceError, SpawnException
from simrank.torch.devices.allocations import Allocations, DeviceKinds, Held

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)


COUNT = 1 << 20


def races_of(spawn, body, num_ranks=2):
    """Return the races of a program on `num_ranks` ranks."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        body()
        torch.cuda.synchronize()
        dist.destroy_process_group()

    return spawn(program, num_ranks, races="report").races


def fresh():
    return torch.ones(COUNT, device="cuda")


def side_stream():
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def writes_in_flight():
    x = fresh()
    work = dist.all_reduce(x, async_op=True)
    x.add_(1)
    work.wait()


def reads_in_flight():
    x = fresh()
    work = dist.all_reduce(x, async_op=True)
    y = x * 2
    work.wait()
    return y


def host_reads_in_flight():
    x = fresh()
    work = dist.all_reduce(x, async_op=True)
    x.tolist()
    work.wait()


def does_not_wait_for_the_producer():
    x = fresh()
    with torch.cuda.stream(torch.cuda.Stream()):
        return x * 2


def does_not_wait_for_the_consumer():
    x = fresh()
    with torch.cuda.stream(side_stream()):
        y = x * 2
    x.zero_()
    return y


@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        (writes_in_flight, "all_reduce #1", "add_.Tensor writes"),
        (reads_in_flight, "all_reduce #1", "mul.Tensor reads"),
        (host_reads_in_flight, "all_reduce #1", "copy_ reads"),
        (does_not_wait_for_the_producer, "fill_.Scalar writes", "mul.Tensor reads"),
        (does_not_wait_for_the_consumer, "mul.Tensor reads", "zero_ writes"),
    ],
)
def test_accesses_that_nothing_orders_are_a_race(spawn, body, first, second):
    """Named are both operations, their streams and the program's lines."""
    races = races_of(spawn, body)
    assert len(races) == 1  # Each pair of lines once, on whatever ranks.
    text = str(races[0])
    assert first in text
    assert second in text
    assert text.count("test_allocations.py:") == 3
    assert races[0].first.line != races[0].second.line


def waits_for_work():
    x = fresh()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    x.add_(1)


def computes_beside_a_collective():
    x, y = fresh(), fresh()
    work = dist.all_reduce(x, async_op=True)
    y.add_(1)
    work.wait()


def halves_of_one_tensor_on_two_streams():
    x = fresh()
    with torch.cuda.stream(side_stream()):
        x[: COUNT // 2].add_(1)
    x[COUNT // 2 :].add_(1)
    torch.cuda.synchronize()


def events():
    x, stream = fresh(), torch.cuda.Stream()
    ready = torch.cuda.Event()
    ready.record()
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        y = x * 2
        done = stream.record_event()
    done.wait()
    x.mul_(y)


def backward_of_another_stream():
    model, x = nn.Linear(8, 8).cuda(), torch.ones(4, 8, device="cuda")
    with torch.cuda.stream(side_stream()):
        loss = model(x).sum()
    torch.cuda.synchronize()
    loss.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()


def trains(model):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.ones(4, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp():
    trains(DistributedDataParallel(nn.Linear(64, 64).cuda()))


def fsdp2():
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)]).cuda()
    for layer in model:
        fully_shard(layer)
    trains(fully_shard(model))


def records_its_use():
    x, stream = fresh(), side_stream()
    with torch.cuda.stream(stream):
        y = x * 2
    x.record_stream(stream)
    del x
    return y, fresh()


def waits_before_it_allocates():
    x, stream = fresh(), side_stream()
    with torch.cuda.stream(stream):
        y = x * 2
    del x
    torch.cuda.current_stream().wait_stream(stream)
    return y, fresh()


def never_allocates_again():
    x, stream = fresh(), side_stream()
    with torch.cuda.stream(stream):
        y = x * 2
    del x
    return y


def allocates_in_another_pool():
    x, stream = fresh(), side_stream()
    with torch.cuda.stream(stream):
        y = x * 2
    del x
    return y, torch.zeros(16, device="cuda")


@pytest.mark.parametrize(
    "body",
    [
        waits_for_work, computes_beside_a_collective, halves_of_one_tensor_on_two_streams, events,
        backward_of_another_stream, ddp, fsdp2, records_its_use, waits_before_it_allocates,
        never_allocates_again, allocates_in_another_pool,
    ],
)  # fmt: skip
def test_programs_that_order_what_they_do_get_no_alarm(spawn, body):
    """Those of torch's own libraries, too."""
    assert [str(race) for race in races_of(spawn, body)] == []


def test_memory_given_out_while_another_stream_reads_it_is_a_race(spawn):
    """Named are the use and the free; the cure is `record_stream`, or to wait."""

    def body():
        x, stream = fresh(), side_stream()
        with torch.cuda.stream(stream):
            y = x * 2
        del x
        return y, fresh()

    (race,) = races_of(spawn, body, 1)
    assert "is given out again while stream 'stream 1' uses it" in str(race)
    assert "tensor.record_stream() with stream 'stream 1'" in str(race)
    assert (race.first.name, race.first.verb) == ("mul.Tensor", "reads")
    assert (race.second.name, race.second.verb) == ("the last reference", "dies")
    assert race.second.line == race.first.line + 1
    assert race.to_json()["created_at"] == race.created_at


def test_a_race_is_raised_where_the_second_access_is_issued(spawn):
    """Also one that an allocation finds: the operation that needed the memory raises it."""

    def in_flight(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        writes_in_flight()

    def too_soon(rank):
        x, stream = fresh(), side_stream()
        with torch.cuda.stream(stream):
            y = x * 2
        del x
        return y, fresh()

    for program in (in_flight, too_soon):
        with pytest.raises(SpawnException) as raised:
            spawn(program, 2, races="error")
        assert isinstance(raised.value.__cause__, RaceError)


def test_numbers_and_times_do_not_depend_on_whether_races_are_looked_for(spawn):
    """It only observes."""
    results = []

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(64, 64).cuda())
        trains(model)
        torch.cuda.synchronize()
        results.append(model.module.weight.sum().item())

    times = [spawn(program, 2, races=races).now_ps for races in ("off", "report")]
    assert results[:2] == results[2:]
    assert times[0] == times[1]


# ---- Kinds of the large blocks of a device ----

MIB = 1 << 20


def held(size_mib, phase):
    """Return a block of the first device."""
    return Held(0, 0, size_mib * MIB, None, phase)


def in_mib(found):
    """Return the sums that are not 0, in MiB."""
    return {kind: size // MIB for kind, size in found.items() if size}


def test_a_peak_before_the_first_step_knows_its_parameters():
    """They are what forward has allocated and the step finds; activations are gone by then."""
    kinds = DeviceKinds()
    parameter, activation, gradient = held(4, "forward"), held(8, "forward"), held(3, "backward")
    kinds.add(parameter)
    kinds.add(activation)
    assert kinds.text() == "parameters and activations 0.01 GiB"
    kinds.add(gradient)
    kinds.remove(activation)
    kinds.begin_step([parameter, gradient], [])
    state = held(2, "optimizer")
    kinds.add(state)
    assert in_mib(kinds.at_peak) == {"parameters": 4, "activations": 8, "gradients": 3}
    assert kinds.text().startswith("parameters 0.00 GiB, gradients 0.00 GiB, optimizer states ")


def test_what_came_after_the_peak_does_not_change_it():
    """A block that takes the place of another one is none of it."""
    kinds = DeviceKinds()
    first = held(5, "forward")
    kinds.add(first)
    kinds.remove(first)
    later = held(4, "forward")
    kinds.add(later)
    kinds.begin_step([later], [])
    assert in_mib(kinds.at_peak) == {"activations": 5}


def test_exchanged_memory_is_a_buffer_but_not_what_is_known():
    """A parameter that is broadcast stays one; gradients may lie in what forward has allocated."""
    kinds = DeviceKinds()
    parameter, flat, gathered = held(4, "forward"), held(6, "forward"), held(2, "recomputation")
    for each in (parameter, flat, gathered):
        kinds.add(each)
    kinds.exchange(gathered)
    kinds.begin_step([parameter, flat, gathered], [flat])
    kinds.exchange(parameter)
    assert in_mib(kinds.at_peak) == {"parameters": 4, "gradients": 6, "communication buffers": 2}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for simulated devices")
def test_peaks_are_those_of_the_whole_run_after_the_program_resets_its_own(spawn):
    """As torchtitan does after each step that it logs."""

    def program(_rank):
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        held = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.max_memory_allocated() == 2 * MIB
        del held

    memory = spawn(program, 1).devices[0].memory
    assert memory.peak_bytes == 64 * MIB
    assert memory.peak_reserved_bytes == 64 * MIB
    assert list(memory.totals_bytes) == [64 * MIB, 0, 2 * MIB, 0]


@pytest.mark.parametrize(("limit", "is_looked_at"), [(8, False), (10_000, True)])
def test_small_blocks_are_reported_only_while_races_are_looked_for(
    spawn, monkeypatch, limit, is_looked_at
):
    """A loop of small operations costs after the limit what it costs without checks."""
    monkeypatch.setattr("simrank.context.MAX_OPERATIONS_BY_DEFAULT", limit)
    seen, report = [], Allocations.allocated

    def allocated(self, owner, stream, address, size_bytes):
        seen.append(size_bytes)
        report(self, owner, stream, address, size_bytes)

    monkeypatch.setattr(Allocations, "allocated", allocated)

    def program(rank):
        x = torch.ones(16, device="cuda")
        for _ in range(200):
            x = x + 1
        torch.cuda.synchronize()
        seen.clear()
        for _ in range(200):
            x = x + 1
        torch.cuda.synchronize()

    spawn(program, 1, checks="default")
    assert (len(seen) >= 200) is is_looked_at


@pytest.mark.filterwarnings("ignore:.*reduce_scatter_tensor:FutureWarning")
def test_what_is_given_back_while_a_collective_uses_it_is_free_and_keeps_its_values(spawn):
    """As on CUDA, where the stream's order is enough; an asynchronous call keeps it until then."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        total = torch.zeros(COUNT // 2, device="cuda")
        held = torch.cuda.memory_allocated()
        for give_back in (list.clear, _shrink):
            for value in range(3):
                parts = [torch.full((COUNT,), float(value + rank), device="cuda")]
                dist.reduce_scatter_tensor(total, parts[0])
                give_back(parts)
                assert torch.cuda.memory_allocated() == held
                torch.full((COUNT,), 99.0, device="cuda")
                assert total.unique().tolist() == [2 * value + 1]
        work = dist.reduce_scatter_tensor(total, torch.ones(COUNT, device="cuda"), async_op=True)
        assert torch.cuda.memory_allocated() == held + 4 * COUNT
        work.wait()
        assert torch.cuda.memory_allocated() == held

    spawn(program, 2)


def _shrink(parts):
    parts.pop().untyped_storage().resize_(0)


def test_a_full_device_waits_for_the_collectives_that_use_what_was_given_back(spawn):
    """On CUDA its next user would come after them on the stream."""

    def program(rank):
        torch.cuda.set_device(rank)
        torch.cuda.set_per_process_memory_fraction(1.5 * 40 * COUNT / torch.cuda.mem_get_info()[1])
        dist.init_process_group("nccl")
        for value in range(3):
            x = torch.full((10 * COUNT,), float(value), device="cuda")
            dist.all_reduce(x)
            last = x[:1].clone() if value == 2 else None
            del x
        assert last.item() == 4.0

    spawn(program, 2)
