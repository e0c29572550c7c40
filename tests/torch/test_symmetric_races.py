"""Races on torch's symmetric memory: each kind of writer beside each kind of reader."""

import inspect
import shutil

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed")
if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as symm  # noqa: E402
import triton.language as tl  # noqa: E402

N = 64


@triton.jit
def put(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 3.0)


@triton.jit
def put_by_address(table, peer, N: tl.constexpr):
    x = tl.load(table + peer).to(tl.pointer_type(tl.float32))
    tl.store(x + tl.arange(0, N), 4.0)


@triton.jit
def put_as_a_task(x, own, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 5.0)
    tl.atomic_xchg(own, 1, sem="release", scope="sys")


@triton.jit
def get(x, out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), tl.load(x + tl.arange(0, N)))


@triton.jit
def get_by_address(table, peer, out, N: tl.constexpr):
    x = tl.load(table + peer).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.arange(0, N), tl.load(x + tl.arange(0, N)))


@triton.jit
def get_as_a_task(x, out, own, N: tl.constexpr):
    tl.atomic_xchg(own, 1, sem="acq_rel", scope="sys")
    tl.store(out + tl.arange(0, N), tl.load(x + tl.arange(0, N)))


class Place:
    """A symmetric buffer of one rank, as a rank reaches it."""

    def __init__(self, rank, owner):
        self.own = symm.empty(N, device="cuda").zero_()
        self.handle = symm.rendezvous(self.own, dist.group.WORLD)
        self.owner = owner
        self.memory = self.handle.get_buffer(owner, (N,), torch.float32)
        self.out = torch.zeros(N, device="cuda")
        self.side = torch.cuda.Stream()
        self.word = torch.zeros(1, dtype=torch.int32, device="cuda")
        pointers = [self.handle.get_buffer(r, (N,), torch.float32).data_ptr() for r in (0, 1)]
        self.table = torch.tensor(pointers, device="cuda")
        torch.cuda.synchronize()
        dist.barrier()


def fills_beside(at):
    """On another stream, of which the current one knows nothing."""
    with torch.cuda.stream(at.side):
        at.memory.fill_(6.0)


def fills_beside_and_joins(at):
    """On another stream, which the current one waits for."""
    with torch.cuda.stream(at.side):
        at.memory.fill_(7.0)
    torch.cuda.current_stream().wait_stream(at.side)


def fills(at):
    at.memory.fill_(1.0)


def copies_in(at):
    at.memory.copy_(at.out)


def copies_from_the_host(at):
    at.memory.copy_(torch.ones(N))


def adds_in_place(at):
    at.memory.add_(1.0)


def sets_a_part(at):
    at.memory[3:9] = 2.0


def stores(at):
    put[(1,)](at.memory, N=N)


def stores_by_address(at):
    put_by_address[(1,)](at.table, at.owner, N=N)


def stores_as_a_task(at):
    put_as_a_task[(1,)](at.memory, at.word, N=N)


def adds(at):
    return at.memory + 0


def copies_out(at):
    at.out.copy_(at.memory)


def reads_one(at):
    return at.memory[4].item()


def reads_all(at):
    return at.memory.tolist()


def copies_to_the_host(at):
    return at.memory.cpu()


def loads(at):
    get[(1,)](at.memory, at.out, N=N)


def loads_by_address(at):
    get_by_address[(1,)](at.table, at.owner, at.out, N=N)


def loads_as_a_task(at):
    get_as_a_task[(1,)](at.memory, at.out, at.word, N=N)


WRITERS = (
    fills, copies_in, copies_from_the_host, adds_in_place, sets_a_part, stores, stores_by_address,
    stores_as_a_task,
)  # fmt: skip
READERS = (
    adds, copies_out, reads_one, reads_all, copies_to_the_host, loads, loads_by_address,
    loads_as_a_task, fills, stores,
)  # fmt: skip


def nothing(rank, at):
    """Order nothing."""


def barrier(rank, at):
    """Let the streams meet."""
    at.handle.barrier()


def signal(rank, at):
    """Let the reader's stream wait for the writer's."""
    if rank == 0:
        at.handle.put_signal(1)
    else:
        at.handle.wait_signal(0)


def hosts(rank, at):
    """Let the hosts meet behind the writer's stream."""
    if rank == 0:
        torch.cuda.synchronize()
    dist.barrier()


def collective(rank, at):
    """Let a collective of both stand between."""
    dist.all_reduce(torch.zeros(1, device="cuda"))


def wrong_signal(rank, at):
    """Signal in the wrong direction."""
    if rank == 1:
        at.handle.put_signal(0)
    else:
        at.handle.wait_signal(1)


ORDERS = (barrier, signal, hosts, collective)


def lines_of(function):
    """The lines of a function."""
    lines, first = inspect.getsourcelines(function)
    return range(first, first + len(lines))


KERNELS = {
    stores: put, stores_by_address: put_by_address, stores_as_a_task: put_as_a_task,
    loads: get, loads_by_address: get_by_address, loads_as_a_task: get_as_a_task,
}  # fmt: skip


def names(race, writer, reader):
    """Whether a race names a line of each of the two."""
    places = [lines_of(KERNELS[f].fn if f in KERNELS else f) for f in (writer, reader)]
    found = [access.line for access in (race.first, race.second)]
    return any(one in places[0] and other in places[1] for one, other in (found, reversed(found)))


def run(spawn, writer, order, *, owner, readers=READERS, back=False):
    """Write on rank 0 and read on rank 1, with something between; return the races."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        for reader in readers:
            at = Place(rank, owner)
            first, second = (reader, writer) if back else (writer, reader)
            if rank == int(back):
                first(at)
                order(rank, at)
            else:
                order(rank, at)
                second(at)
            torch.cuda.synchronize()
            dist.barrier()

    return spawn(program, 2, races="report").races


@pytest.mark.slow
@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_nothing_orders_is_a_race_that_names_both_lines(spawn, writer, owner):
    """Whatever writes and whatever reads, and whose memory it is."""
    races = run(spawn, writer, nothing, owner=owner)
    missed = [r.__name__ for r in READERS if not any(names(race, writer, r) for race in races)]
    assert ", ".join(missed) == ""


@pytest.mark.slow
@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_ordered_is_no_race(spawn, writer, order, owner):
    """By barriers and signals of streams, collectives, and hosts that meet."""
    assert [str(race) for race in run(spawn, writer, order, owner=owner)] == []


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_a_missing_last_barrier_is_a_race(spawn, writer):
    """A peer still reads what is overwritten; with the barrier it has read."""
    races = run(spawn, writer, nothing, owner=0, back=True)
    missed = [r.__name__ for r in READERS if not any(names(race, writer, r) for race in races)]
    assert ", ".join(missed) == ""
    assert [str(race) for race in run(spawn, writer, barrier, owner=0, back=True)] == []


def test_a_signal_in_the_wrong_direction_orders_nothing(spawn):
    """The writer waits for the reader, not the reader for the writer."""

    def reads_first(at):
        return at.memory + 0

    races = run(spawn, fills, wrong_signal, owner=0, readers=[reads_first])
    assert len(races) == 1


@pytest.mark.slow
@pytest.mark.parametrize("order", [barrier, signal, collective])
def test_another_stream_is_ordered_by_an_event(spawn, order):
    """A barrier of the current stream knows nothing of it otherwise."""
    races = run(spawn, fills_beside, order, owner=0)
    assert len(races) == len(READERS)
    assert all(
        names(race, fills_beside, reader) for race, reader in zip(races, READERS, strict=True)
    )
    assert run(spawn, fills_beside_and_joins, order, owner=0) == []


def adds_everywhere(x):
    symm_mem = torch.ops.symm_mem
    symm_mem.two_shot_all_reduce_(x, "sum", dist.group.WORLD.group_name)


def adds_up(x):
    symm_mem = torch.ops.symm_mem
    return symm_mem.one_shot_all_reduce(x, "sum", dist.group.WORLD.group_name)


@pytest.mark.slow
@pytest.mark.parametrize("operator", [adds_everywhere, adds_up])
@pytest.mark.parametrize("is_ordered", [False, True])
def test_operators_on_symmetric_memory_meet_before_and_behind(spawn, operator, is_ordered):
    """What ranks do around them is ordered; what another stream does meanwhile is not."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        x = symm.empty(N, device="cuda").fill_(rank)
        handle = symm.rendezvous(x, dist.group.WORLD)
        side = torch.cuda.Stream()
        for turn in range(2):
            x.fill_(turn)
            operator(x)
            if rank == 0:
                if is_ordered:
                    side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    handle.get_buffer(1, (N,), torch.float32).fill_(9.0)
                if is_ordered:
                    torch.cuda.current_stream().wait_stream(side)
            handle.barrier()

    races = spawn(program, 2, races="report").races
    assert bool(races) != is_ordered


def test_a_word_that_a_stream_writes_is_a_signal(spawn):
    """A kernel that waits for it is behind what the stream did before."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        x = symm.empty(N, device="cuda").zero_()
        handle = symm.rendezvous(x, dist.group.WORLD)
        handle.barrier()
        out = torch.zeros(N, device="cuda")
        pad = handle.get_signal_pad(1, (8,), torch.uint32)
        if rank == 0:
            handle.get_buffer(1, (N,), torch.float32).fill_(5.0)
            torch.ops.symm_mem.stream_write_value32_(pad, 0, 1)
        else:
            get_when_told[(1,)](x, pad.view(torch.int32), out, N=N)
            assert out.sum().item() == 5 * N

    assert spawn(program, 2, races="report").races == []


@triton.jit
def get_when_told(x, flag, out, N: tl.constexpr):
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != 1:
        pass
    tl.store(out + tl.arange(0, N), tl.load(x + tl.arange(0, N)))


def pads_meet(spawn, order):
    """Write a word of a peer's signal pad with torch, and read it there; return the races."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        at = Place(rank, 0)
        if rank == 0:
            at.handle.get_signal_pad(1, (8,), torch.int32).fill_(1)
        order(rank, at)
        if rank == 1:
            at.handle.get_signal_pad(1, (8,), torch.int32).tolist()
        torch.cuda.synchronize()
        dist.barrier()

    return spawn(program, 2, races="report").races


def test_words_of_a_signal_pad_that_torch_writes_are_checked(spawn):
    """As those of a buffer; the report names where the buffer was made."""
    (race,) = pads_meet(spawn, nothing)
    assert "(allocated at test_symmetric_races.py:" in str(race)
    assert "of rank 0 writes at test_symmetric_races.py:" in str(race)
    assert [str(race) for race in pads_meet(spawn, hosts)] == []
