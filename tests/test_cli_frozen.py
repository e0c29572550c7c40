"""What the command line and the package promise: names that may not change by accident."""

import typer.main

import simrank
import simrank.bench
import simrank.distributed
import simrank.errors
import simrank.multiprocessing
from simrank.cli import app
from simrank.cli.nccl_tests import SETTLED

COMMANDS = {
    "accuracy": {
        "table", "--cluster", "--fit", "--collective", "-g", "--num-ranks", "--json", "--html",
        "--help",
    },
    "calibrate": {
        "measured", "--cluster", "--collective", "-g", "--num-ranks", "--library", "--site",
        "--out", "--help",
    },
    "bench": {
        "target", "--cluster", "--nodes", "-g", "--ngpus", "--num-ranks", "-b", "--minbytes", "-e",
        "--maxbytes", "-f", "--stepfactor", "-i", "--stepbytes", "-n", "--iters", "-w",
        "--warmup_iters", "-d", "--datatype", "-o", "--op", "-r", "--root", "-c", "--check", "-a",
        "--average", "-t", "--nthreads", "-z", "--blocking", "-T", "--timeout",
        *(option for settled in SETTLED for option in (settled.short, settled.long)),
        "--algorithm", "--measured", "--seed", "--json", "--csv", "--html", "--nccl-tests",
        "--inspector", "--trace", "--trace-ranks", "--jobs", "--backend",
        "--help",
    },
    "check": {"file", "--help"},
    "compare": {
        "program", "args", "--nproc-per-node", "--nproc_per_node", "--backend", "--cluster",
        "--tolerance", "--skip-real", "--timeout", "--bench", "--kernels", "--out", "--json",
        "--report", "--help",
    },
    "clusters": {"--help"},
    "explain": {
        "--collective", "--size", "--cluster", "--nodes", "-g", "--num-ranks", "--tuner",
        "--graph", "--calibration", "--html", "--help",
    },
    "tune": {
        "--collective", "--cluster", "--nodes", "-g", "--num-ranks", "--calibration", "--out",
        "--help",
    },
    "convert": {
        "source", "--device", "--graph", "--collective", "-n", "--num-ranks", "--to", "--out",
        "--help",
    },
    "prove": {"algorithm", "--collective", "-n", "--num-ranks", "--size", "--root", "--help"},
    "replay": {
        "files", "--cluster", "--nodes", "--groups", "--seed", "--json", "--trace",
        "--trace-ranks", "--help",
    },
    "kernels": {"--help"},  # A group: coverage, report and check.
    "torch": {"--help"},  # A group: build.
    "schema": {"kind", "--to", "--help"},
    "run": {
        "program", "args", "-m", "--module", "--cluster", "--nproc-per-node", "--nproc_per_node",
        "--nnodes", "--max-restarts", "--max_restarts", "--standalone", "--seed", "--trace",
        "--trace-ranks", "--html", "--summary",
        "--prefix", "-t", "--tee", "-r", "--redirects", "--log-dir", "--log_dir",
        "--local-ranks-filter", "--local_ranks_filter", "--shape-only", "--races", "--strict",
        "--default-device", "--on-failure", "--carrier", "--private", "--compute-time", "--devices",
        "--flight-recorder", "--divergence",
        "--faults", "--seeds",
        "--delays",
        "--max-delay", "--watchdog", "--time-limit", "--full-traceback", "--help",
        # torchrun's, of which `simrank run` says that it ignores or refuses them.
        "--rdzv-backend", "--rdzv_backend", "--rdzv-endpoint", "--rdzv_endpoint", "--rdzv-id",
        "--rdzv_id", "--rdzv-conf", "--rdzv_conf", "--master-addr", "--master_addr",
        "--master-port", "--master_port", "--local-addr", "--local_addr", "--node-rank",
        "--node_rank", "--monitor-interval",
        "--monitor_interval", "--start-method", "--start_method", "--role",
        "--event-log-handler", "--event_log_handler", "--numa-binding", "--numa_binding",
        "--signals-to-handle", "--signals_to_handle", "--shutdown-timeout", "--shutdown_timeout",
        "--run-path", "--run_path", "--logs-specs", "--logs_specs",
        "--duplicate-stdout-filters", "--duplicate_stdout_filters",
        "--duplicate-stderr-filters", "--duplicate_stderr_filters", "--no-python", "--no_python",
        "--virtual-local-rank", "--virtual_local_rank",
    },
}  # fmt: skip


def test_commands_and_options_are_frozen():
    """Adding is fine, with a line here; renaming or dropping breaks users."""
    group = typer.main.get_command(app)
    found = {}
    for name in group.commands:
        command = group.get_command(None, name)
        options = set()
        for parameter in command.params:
            options |= set(parameter.opts) if parameter.opts[0][0] == "-" else {parameter.name}
        found[name] = options | {"--help"}
    assert found == COMMANDS


def test_public_names_are_frozen():
    """What programs import."""
    assert simrank.__all__ == [
        "Context", "Event", "Stream", "Tensor", "bench", "distributed", "errors",
        "explore", "multiprocessing", "predict", "validate",
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
