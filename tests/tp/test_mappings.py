"""Movements of activations: each equals its definition, and its backward its transpose."""

import numpy as np
import pytest

import simrank.distributed as dist
from simrank import tp
from simrank.tp import mappings

WORLD = 4
MAPPINGS = [value for value in vars(mappings).values() if isinstance(value, mappings.Mapping)]


def inputs(ctx, shape):
    """Return the tensors of all ranks, and this rank's on its device."""
    drawn = np.random.default_rng(1).standard_normal((WORLD, *shape)).astype(np.float32)
    return drawn, ctx.from_numpy(drawn[dist.get_rank()]).cuda()


def start():
    dist.init_process_group("nccl")
    tp.parallel_state.initialize_model_parallel(WORLD)


FORWARD = {
    "copy_to_tensor_model_parallel_region": lambda x, r: x[r],
    "reduce_from_tensor_model_parallel_region": lambda x, r: x.sum(0),
    "scatter_to_tensor_model_parallel_region": lambda x, r: np.split(x[r], WORLD, -1)[r],
    "gather_from_tensor_model_parallel_region": lambda x, r: np.concatenate(list(x), -1),
    "scatter_to_sequence_parallel_region": lambda x, r: np.split(x[r], WORLD, 0)[r],
    "gather_from_sequence_parallel_region": lambda x, r: np.concatenate(list(x), 0),
    "reduce_scatter_to_sequence_parallel_region": lambda x, r: np.split(x.sum(0), WORLD, 0)[r],
}
BACKWARD = {
    "copy_to_tensor_model_parallel_region": "reduce_from_tensor_model_parallel_region",
    "reduce_from_tensor_model_parallel_region": "copy_to_tensor_model_parallel_region",
    "scatter_to_tensor_model_parallel_region": "gather_from_tensor_model_parallel_region",
    "gather_from_tensor_model_parallel_region": "scatter_to_tensor_model_parallel_region",
    "scatter_to_sequence_parallel_region": "gather_from_sequence_parallel_region",
    "gather_from_sequence_parallel_region": "reduce_scatter_to_sequence_parallel_region",
    "reduce_scatter_to_sequence_parallel_region": "gather_from_sequence_parallel_region",
}


def test_every_mapping_is_defined_here():
    """A new one needs its definition."""
    assert {mapping.__name__ for mapping in MAPPINGS} == set(FORWARD) == set(BACKWARD)


@pytest.mark.ranks(WORLD)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.__name__)
@pytest.mark.parametrize("shape", [(8, 4), (4, 2, 8)])
def test_a_mapping_equals_its_definition_and_leaves_its_input_alone(ctx, rank, mapping, shape):
    """Forward and backward."""
    start()
    x, own = inputs(ctx, shape)
    for move, name in (
        (mapping, mapping.__name__),
        (mapping.backward, BACKWARD[mapping.__name__]),
    ):
        assert np.allclose(move(own).numpy(), FORWARD[name](x, rank), atol=1e-6)
        assert (own.numpy() == x[rank]).all()


@pytest.mark.ranks(WORLD)
def test_a_group_may_be_given(ctx, rank):
    """Instead of the tensor-parallel one."""
    start()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x, own = inputs(ctx, (4, 4))
    found = tp.reduce_from_tensor_model_parallel_region(own, group=pairs[rank // 2])
    first = rank - rank % 2
    assert np.allclose(found.numpy(), x[first] + x[first + 1])
