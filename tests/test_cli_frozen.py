"""What the command line and the package promise: names that may not change by accident."""

import json

import typer.main

import simrank
import simrank.bench
import simrank.distributed
import simrank.errors
import simrank.multiprocessing
from simrank.cli import app
from simrank.cli.completion import SURFACE
from tests.surface import surface_of


def test_commands_options_and_words_are_frozen():
    """`tests/surface.py` writes what is new; renaming or dropping breaks users."""
    promised = json.loads(SURFACE.read_text("utf-8"))
    found = json.loads(json.dumps(surface_of(typer.main.get_command(app))))
    assert found["commands"].keys() == promised["commands"].keys()
    for name, spellings in promised["commands"].items():
        assert found["commands"][name] == spellings, name
    assert found["words"] == promised["words"]


def test_public_names_are_frozen():
    """What programs import."""
    assert simrank.__all__ == [
        "Context", "Event", "Stream", "Tensor", "bench", "distributed", "errors",
        "explore", "multiprocessing", "predict", "predict_attention", "predict_gemm", "validate",
    ]  # fmt: skip
    assert all(hasattr(simrank, name) for name in simrank.__all__)
    assert simrank.multiprocessing.__all__ == [
        "Array", "Barrier", "BoundedSemaphore", "Condition", "Event", "JoinableQueue", "Lock",
        "Manager", "Pool", "Process", "ProcessContext", "ProcessException",
        "ProcessExitedException", "ProcessRaisedException", "Queue", "RLock", "Semaphore",
        "SimpleQueue", "SpawnContext", "SpawnException", "Value", "get_context", "spawn",
        "start_processes",
    ]  # fmt: skip
    assert simrank.distributed.__all__ == [
        "Backend", "DistBackendError", "DistNetworkError", "ElasticOptions", "GroupMember", "P2POp",
        "ProcessGroup", "ReduceOp", "Work", "active_ranks", "all_gather", "all_gather_coalesced",
        "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_reduce",
        "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv",
        "broadcast", "broadcast_object_list", "deactivate_rank", "destroy_process_group", "gather",
        "gather_object", "get_backend", "get_global_rank", "get_group_rank",
        "get_process_group_ranks", "get_rank", "get_world_size", "group", "init_process_group",
        "irecv", "is_available", "is_gloo_available", "is_initialized", "is_mpi_available",
        "is_nccl_available", "isend", "monitored_barrier", "new_group", "new_subgroups",
        "new_subgroups_by_enumeration", "recv", "recv_object_list", "reduce", "reduce_scatter",
        "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
        "send_object_list", "set_active_ranks", "shrink_group", "split_group", "symmetric_memory",
    ]  # fmt: skip


def test_signatures_of_torchs_functions_are_torchs():
    """Parameter names and defaults, as a user calls them; what simrank adds comes last."""
    import inspect

    def shape(function):
        parameters = inspect.signature(function).parameters.values()
        return [(p.name, p.default) for p in parameters]

    none = inspect.Parameter.empty
    assert shape(simrank.multiprocessing.spawn) == [
        ("fn", none), ("args", ()), ("nprocs", 1), ("join", True), ("daemon", False),
        ("start_method", "spawn"), ("share_args", False),
    ]  # fmt: skip
    assert shape(simrank.distributed.all_reduce) == [
        ("tensor", none), ("op", "sum"), ("group", None), ("async_op", False),
    ]  # fmt: skip
    assert shape(simrank.distributed.broadcast) == [
        ("tensor", none), ("src", None), ("group", None), ("async_op", False), ("group_src", None),
    ]  # fmt: skip
