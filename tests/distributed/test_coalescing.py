"""Coalescing managers, as torch 2.13 has them."""

import pytest

import simrank.distributed as dist
from simrank.errors import SpawnException, UnsupportedError


class Counter:
    """Counts collectives that end on rank 0."""

    def __init__(self):
        self.names = []

    def on_operation(self, operation):
        if operation.kind == "collective" and operation.rank == 0:
            self.names.append(operation.name.split(" ")[0])

    def __getattr__(self, name):  # noqa: D105 - the other calls of an observer
        return lambda *arguments: None


def test_all_reduces_in_a_manager_are_one_call(run):
    """Sums are those of single calls; one collective runs."""
    counter = Counter()

    def program(rank, ctx):
        if rank == 0:
            ctx.observe(counter)
        dist.init_process_group()
        tensors = [ctx.full((n, 2), float(rank + n)) for n in (1, 2, 3)]
        with dist._coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                work = dist.all_reduce(tensor, async_op=True)
                with pytest.raises(ValueError, match="Illegal to call wait on IllegalWork object"):
                    work.wait()
                assert isinstance(work, dist.Work)
        manager.wait()
        for n, tensor in zip((1, 2, 3), tensors, strict=True):
            assert tensor.tolist() == [[4 * n + 6.0] * 2] * n

    run(program, 4)
    assert counter.names == ["all_reduce"]


def test_gathers_and_scatters_in_a_manager_give_what_single_calls_give(run):
    """Each tensor's parts come back in their own tensor, in group order."""
    counter = Counter()

    def program(rank, ctx):
        if rank == 0:
            ctx.observe(counter)
        dist.init_process_group()
        size = dist.get_world_size()
        inputs = [ctx.arange(n).float() + 10 * rank for n in (1, 3)]
        together = [ctx.empty(size * n) for n in (1, 3)]
        apart = [ctx.empty(size * n) for n in (1, 3)]
        with dist._coalescing_manager():
            for output, given in zip(together, inputs, strict=True):
                dist.all_gather_into_tensor(output, given)
        for output, given in zip(apart, inputs, strict=True):
            dist.all_gather_into_tensor(output, given)
        assert [x.tolist() for x in together] == [x.tolist() for x in apart]
        parts = [ctx.empty(n) for n in (1, 3)]
        with dist._coalescing_manager():
            for output, given in zip(parts, together, strict=True):
                dist.reduce_scatter_tensor(output, given)
        for output, given in zip(parts, inputs, strict=True):
            assert output.tolist() == (given * size).tolist()

    run(program, 3)
    assert counter.names == ["all_gather", "all_gather", "all_gather", "reduce_scatter"]


def test_a_manager_takes_one_kind_and_one_reduction(run):
    """Mixed kinds are torch's error; mixed reductions are refused, where torch takes the first."""

    def kinds(_, ctx):
        dist.init_process_group()
        with dist._coalescing_manager():
            dist.all_reduce(ctx.ones(2))
            dist.reduce_scatter_tensor(ctx.ones(1), ctx.ones(2))

    with pytest.raises(SpawnException, match="same type, but got mixed types"):
        run(kinds, 2)

    def reductions(_, ctx):
        dist.init_process_group()
        with dist._coalescing_manager():
            dist.all_reduce(ctx.ones(2), dist.ReduceOp.MAX)
            dist.all_reduce(ctx.ones(2))

    with pytest.raises(SpawnException) as caught:
        run(reductions, 2)
    assert isinstance(caught.value.errors[0], UnsupportedError)


def test_other_collectives_in_a_manager_run_at_once_and_with_a_device_are_refused(run):
    """As torch without a device; with one it would hold back everything."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.full((2,), float(rank))
        with dist._coalescing_manager():
            dist.broadcast(x, 1)
            assert x.tolist() == [1, 1]
        with (
            pytest.raises(UnsupportedError, match="broadcast inside a coalescing manager with"),
            dist._coalescing_manager(device=x.device),
        ):
            dist.broadcast(x, 1)

    run(program, 2)


def test_coalesced_functions_reduce_and_gather_lists(run):
    """all_reduce_coalesced under both backends, all_gather_coalesced under gloo alone."""

    def program(rank, ctx, backend, device):
        dist.init_process_group(backend)
        tensors = [ctx.full((n,), float(rank), device=device) for n in (1, 2)]
        dist.all_reduce_coalesced(tensors)
        assert [x.tolist() for x in tensors] == [[1.0], [1.0, 1.0]]
        future = dist.all_reduce_coalesced(tensors, async_op=True)
        assert [x.tolist() for x in future.wait()] == [[2.0], [2.0, 2.0]]
        outputs = [[ctx.empty(1, device=device), ctx.empty(2, device=device)] for _ in range(2)]
        given = [ctx.full((n,), 5.0 + rank, device=device) for n in (1, 2)]
        if backend == "nccl":
            with pytest.raises(RuntimeError, match="nccl does not support allgather_coalesced"):
                dist.all_gather_coalesced(outputs, given)
        else:
            dist.all_gather_coalesced(outputs, given)
            assert [x.tolist() for x in outputs[1]] == [[6.0], [6.0, 6.0]]

    run(program, 2, "nccl", "cuda")
    run(program, 2, "gloo", "cpu")
