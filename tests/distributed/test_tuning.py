"""NCCL's variables choose, and not every reduction fits into a switch."""

import os

import pytest

import simrank.distributed as dist
from simrank.collectives.nccl.cost_level import ANY, NO_SWITCH
from simrank.distributed.planner import NO_OVERRIDES, NcclOverrides, tuning_of
from simrank.errors import ConfigError


class Watch:
    """Keeps what collectives have run: algorithm, protocol and cost level."""

    def __init__(self):
        self.found = []

    def on_operation(self, operation):
        if operation.kind == "collective":
            details = operation.details
            self.found.append((details["algorithm"], details["protocol"], details["cost_level"]))

    def on_host(self, *_):
        pass

    on_task_switch = on_transfer = on_host


def all_ran(run, variables, num_elements=1 << 24, later=(), **how):
    """Return what all_reduces of a program ran, with variables that its ranks set, some later."""
    watch = Watch()

    def program(rank, ctx):
        if rank == 0:
            ctx.observe(watch)
        os.environ.update(variables)
        dist.init_process_group()
        dist.all_reduce(ctx.empty(num_elements), **how)
        os.environ.update(later)
        dist.all_reduce(ctx.empty(num_elements // 2), **how)
        ctx.synchronize()

    run(program, 8, data=False)
    return watch.found


def ran(run, variables, num_elements=1 << 24, **how):
    """Return what the first of them ran."""
    return all_ran(run, variables, num_elements, **how)[0]


def test_a_program_runs_what_nccl_would_choose(run):
    """The switch on one node of H100s."""
    assert ran(run, {}) == ("nvls", "Simple", "nccl")


def test_the_variables_of_the_program_choose(run):
    """Set before the communicator exists, by the program itself."""
    variables = {"NCCL_ALGO": "^NVLS;broadcast:ring", "NCCL_PROTO": "LL128"}
    assert ran(run, variables) in (("ring", "LL128", "nccl"), ("tree", "LL128", "nccl"))
    assert ran(run, {"NCCL_ALGO": "allreduce:tree"})[0] == "tree"


def test_they_are_read_once_per_communicator(run):
    """What is set later changes nothing."""
    found = all_ran(run, {"NCCL_ALGO": "Tree"}, 128, later={"NCCL_ALGO": "Ring"})
    assert {algorithm for algorithm, *_ in found} == {"tree"}


def test_sums_of_multiplied_inputs_do_not_fit_into_a_switch(run):
    """NCCL makes them, and averages, by an operation of its own."""
    for op in (dist.ReduceOp.AVG, dist._make_nccl_premul_sum(0.5)):
        assert ran(run, {}, op=op)[0] != "nvls"


def test_a_tuner_file_chooses(run, tmp_path):
    """As with NCCL's example plugin."""
    file = tmp_path / "tuner.csv"
    file.write_text("allreduce,0,18446744073709551615,ring,simple,0,1,8\n")
    assert ran(run, {"NCCL_TUNER_CONFIG_FILE": str(file)}) == ("ring", "Simple", "nccl")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"NCCL_ALGO": "Rings"}, "NCCL_ALGO: expected names of tree, .* got 'rings'"),
        ({"NCCL_PROTO": "LL64"}, "NCCL_PROTO: expected names of ll, .* got 'll64'"),
    ],
)
def test_what_nccl_would_not_read_is_an_error_of_the_calling_rank(run, variables, message):
    """With the variable and its value."""

    def program(rank, ctx):
        os.environ.update(variables)
        dist.init_process_group()
        with pytest.raises(ConfigError, match=message):
            dist.all_reduce(ctx.empty(64))

    run(program, 8, data=False)


def test_variables_that_leave_nothing_are_an_error_of_the_calling_rank(run):
    """A tree gathers nothing; it does reduce."""

    def program(rank, ctx):
        os.environ["NCCL_ALGO"] = "Tree"
        dist.init_process_group()
        dist.all_reduce(ctx.empty(64))
        with pytest.raises(ConfigError, match=r"NCCL_ALGO.*ring LL, .* got tree"):
            dist.all_gather_into_tensor(ctx.empty(64), ctx.empty(8))

    run(program, 8, data=False)


def test_a_wrong_tuner_file_is_an_error():
    """With file and line."""
    with pytest.raises(ConfigError, match="nowhere"):
        tuning_of("all_reduce", "float32", "sum", NcclOverrides(None, None, "nowhere.csv"))


@pytest.mark.parametrize(
    ("dtype", "reduce_op", "fits"),
    [
        ("float32", "sum", True),
        ("float32", "max", False),
        ("bfloat16", "max", True),
        ("int8", "sum", False),
        ("float16", None, True),
    ],
)
def test_a_switch_reduces_some_dtypes_in_some_ways(dtype, reduce_op, fits):
    """Others go through rings and trees, also where NVLS is asked for."""
    assert tuning_of("all_reduce", dtype, reduce_op, NO_OVERRIDES) is (ANY if fits else NO_SWITCH)
    both = tuning_of("all_reduce", dtype, reduce_op, NcclOverrides("NVLS,Ring", None, None))
    assert both.algorithms == ({"nvls", "ring"} if fits else {"ring"})
