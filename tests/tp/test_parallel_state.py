"""Groups of tensor- and data-parallel ranks: who is in which, per rank, with megatron's errors."""

import pytest

import simrank.distributed as dist
from simrank import tp
from simrank.errors import SpawnException, UnsupportedError

state = tp.parallel_state


@pytest.mark.ranks(8)
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_neighbours_split_layers_and_strides_hold_copies(rank, size):
    """Every rank has one group of each kind."""
    dist.init_process_group("nccl")
    assert not state.model_parallel_is_initialized()
    state.initialize_model_parallel(size)
    assert state.model_parallel_is_initialized()
    first = rank - rank % size
    tensor_group = state.get_tensor_model_parallel_group()
    assert dist.get_process_group_ranks(tensor_group) == list(range(first, first + size))
    data_ranks = dist.get_process_group_ranks(state.get_data_parallel_group())
    assert data_ranks == list(range(rank % size, 8, size))
    assert state.get_tensor_model_parallel_rank() == rank % size
    assert state.get_tensor_model_parallel_world_size() == size
    assert state.get_tensor_model_parallel_src_rank() == first
    assert state.get_data_parallel_rank() == rank // size
    assert state.get_data_parallel_world_size() == 8 // size
    assert state.get_data_parallel_src_rank() == rank % size


@pytest.mark.ranks(4)
def test_a_world_that_is_not_divisible_is_refused_in_megatrons_words():
    """With both numbers."""
    dist.init_process_group("nccl")
    with pytest.raises(RuntimeError, match=r"world_size \(4\) is not divisible by 3"):
        state.initialize_model_parallel(3)


@pytest.mark.ranks(2)
def test_a_second_initialisation_is_refused_until_the_first_is_destroyed():
    """As megatron asserts."""
    dist.init_process_group("nccl")
    state.initialize_model_parallel(2)
    with pytest.raises(AssertionError, match="already initialized"):
        state.initialize_model_parallel(2)
    state.destroy_model_parallel()
    assert state.get_tensor_model_parallel_group(check_initialized=False) is None
    state.initialize_model_parallel(1)
    assert state.get_tensor_model_parallel_world_size() == 1


@pytest.mark.ranks(2)
def test_use_before_initialisation_is_refused():
    """Of groups, ranks, layers and mappings."""
    with pytest.raises(AssertionError, match="is not initialized"):
        state.initialize_model_parallel(2)
    dist.init_process_group("nccl")
    for ask in (
        state.get_tensor_model_parallel_group,
        state.get_tensor_model_parallel_rank,
        state.get_data_parallel_world_size,
        lambda: tp.ColumnParallelLinear(4, 4),
    ):
        with pytest.raises(AssertionError, match="group is not initialized"):
            ask()


@pytest.mark.ranks(2)
def test_other_kinds_of_parallelism_are_refused_by_name():
    """They come as megatron's own code, later."""
    dist.init_process_group("nccl")
    with pytest.raises(UnsupportedError, match="pipeline_model_parallel_size=2"):
        state.initialize_model_parallel(1, 2)


def test_state_is_per_rank_never_per_process(run):
    """A rank that has destroyed its own leaves the others theirs; the next spawn starts clean."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        state.initialize_model_parallel(2)
        if rank == 0:
            state.destroy_model_parallel()
        dist.barrier()
        assert state.model_parallel_is_initialized() == (rank != 0)

    run(body, 4)
    run(body, 4)


def test_a_group_that_only_some_ranks_make_is_a_deadlock_that_names_them(run):
    """Rank 3 does not take part."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        if rank != 3:
            state.initialize_model_parallel(4)
            layer = tp.RowParallelLinear(8, 8)
            layer(ctx.ones(2, 2))[0].sum().item()

    with pytest.raises(Exception, match="rank 3: returned"):
        run(body, 4)


def test_a_layer_made_on_some_ranks_only_is_a_deadlock_that_names_the_line(run):
    """The others wait in its all-reduce."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        state.initialize_model_parallel(4)
        if rank < 2:
            layer = tp.RowParallelLinear(8, 8)
            layer(ctx.ones(2, 2))[0].sum().item()

    with pytest.raises(Exception, match="deadlock") as caught:
        run(body, 4)
    text = str(caught.value)
    assert "ranks 0-1: all_reduce #1" in text
    assert "test_parallel_state.py:" in text
    assert "ranks 2-3: returned" in text


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, 8), "float32", "ColumnParallelLinear on rank .: the input has last dim 8"),
        ((2, 16), "bfloat16", "on rank .: the input is bfloat16, the weight is float32"),
    ],
)
def test_an_input_of_another_size_or_type_names_layer_rank_and_both(run, shape, dtype, message):
    """Before anything is computed."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        state.initialize_model_parallel(2)
        tp.ColumnParallelLinear(16, 8)(ctx.ones(*shape, dtype=getattr(ctx, dtype)))

    with pytest.raises(SpawnException, match=message):
        run(body, 2)


def test_ranks_that_split_an_input_differently_are_told_apart(run):
    """The collective's element counts differ: a table names the ranks."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        state.initialize_model_parallel(2)
        rows = 4 if rank == 0 else 6
        tp.RowParallelLinear(16, 8)(ctx.ones(rows, 8))[0].sum().item()

    with pytest.raises(SpawnException) as caught:
        run(body, 2)
    text = str(caught.value)
    assert "CollectiveMismatchError" in text
    assert "rank 0" in text
    assert "rank 1" in text


def test_types_that_differ_over_the_ranks_are_told_apart(run):
    """One rank converted its model, the other did not."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        state.initialize_model_parallel(2)
        dtype = ctx.float32 if rank == 0 else ctx.bfloat16
        layer = tp.RowParallelLinear(16, 8, config=tp.ModelParallelConfig(params_dtype=dtype))
        layer(ctx.ones(4, 8, dtype=dtype))[0].sum().item()

    with pytest.raises(SpawnException) as caught:
        run(body, 2)
    assert "float32" in str(caught.value)
    assert "bfloat16" in str(caught.value)


@pytest.mark.ranks(2)
def test_sizes_that_do_not_divide_are_refused_in_megatrons_words(ctx):
    """Of layers and of activations."""
    dist.init_process_group("nccl")
    state.initialize_model_parallel(2)
    with pytest.raises(AssertionError, match="7 is not divisible by 2"):
        tp.ColumnParallelLinear(4, 7)
    with pytest.raises(AssertionError, match="5 is not divisible by 2"):
        tp.scatter_to_sequence_parallel_region(ctx.ones(5, 4))
    with pytest.raises(RuntimeError, match="`input_is_parallel` must be `True`"):
        config = tp.ModelParallelConfig(sequence_parallel=True)
        tp.RowParallelLinear(4, 4, config=config, input_is_parallel=False)
    with pytest.raises(RuntimeError, match="backward without a forward"):
        tp.RowParallelLinear(4, 4).backward(ctx.ones(1, 4))
