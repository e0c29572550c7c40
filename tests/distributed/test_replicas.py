"""Replicas, compared by hashes of their parameters."""

import simrank
import simrank.distributed as dist
from simrank.distributed.membership import membership
from simrank.distributed.replicas import OptimizerStep, Replicas


def findings_of(hashes_by_rank, steps=(1,)):
    """Return what is found of the hashes that ranks note after some steps."""
    replicas = Replicas()

    def program(rank):
        dist.init_process_group("nccl")
        group = membership(simrank.ranks.current_program()).default
        for number in steps:
            replicas.note(group, rank, OptimizerStep(0, 0, number), hashes_by_rank[rank], None)
        dist.destroy_process_group()

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=len(hashes_by_rank))
    return replicas.findings


def test_the_first_parameter_that_differs_is_named_once():
    """With the ranks that agree told together."""
    hashes = [{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 2}]
    assert findings_of(hashes, steps=(1, 2)) == [
        "replicas on group 'default_pg' differ after optimizer step 1, first in b: "
        "ranks 0, 2 / rank 1 have different values"
    ]


def test_equal_replicas_and_parameters_of_some_ranks_alone_are_no_finding():
    """An optimizer may have a part of the parameters."""
    assert findings_of([{"a": 1}, {"a": 1}]) == []
    assert findings_of([{"a": 1, "own": 2}, {"a": 1, "other": 3}]) == []
