"""torch's profilers show what a rank issued, in simulated time."""

import gzip
import json
import shutil

import pytest
import torch
import torch.distributed as dist

from simrank.torch.devices import activation

# torch 2.12 says so once, whatever the cycles.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events at the end of each"),
    pytest.mark.filterwarnings("ignore:.*all_gather_into_tensor:FutureWarning"),
]


def test_collectives_are_events_of_simulated_length(spawn, tmp_path):
    """On several ranks at once; exported as a trace; grouped by name."""
    times = {}

    def program(rank):
        dist.init_process_group("gloo")
        with torch.profiler.profile(record_shapes=True) as prof:
            with torch.profiler.record_function("step"):
                dist.all_reduce(torch.ones(1 << 16))
            dist.broadcast(torch.ones(4), 0)
        events = {event.name: event for event in prof.events()}
        assert events["gloo:all_reduce"].input_shapes == [[1 << 16]]
        times[rank] = events["gloo:all_reduce"].time_range.elapsed_us()
        assert events["step"].time_range.elapsed_us() >= times[rank] > 0
        assert {row.key for row in prof.key_averages()} == {*events}
        prof.export_chrome_trace(str(tmp_path / f"{rank}.json"))

    spawn(program)
    assert times[0] == times[1]
    assert "gloo:broadcast" in (tmp_path / "0.json").read_text()
    json.loads((tmp_path / "1.json").read_text())


def test_a_schedule_and_the_autograd_profiler_work(spawn):
    """`step`, `on_trace_ready`; DDP's own reductions are seen."""
    ready = []

    def program(rank):
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        schedule = torch.profiler.schedule(wait=1, warmup=1, active=1)
        with torch.profiler.profile(schedule=schedule, on_trace_ready=ready.append) as prof:
            for _ in range(3):
                model(torch.ones(1, 4)).sum().backward()
                prof.step()
        with torch.autograd.profiler.profile() as own:
            model(torch.ones(1, 4)).sum().backward()
        assert "gloo:all_reduce" in {event.name for event in own.function_events}

    spawn(program)
    assert len(ready) == 2


_HOST = torch.autograd.DeviceType.CPU
DEVICES = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for devices")


@DEVICES
def test_operations_of_devices_are_events_of_host_and_device(spawn):
    """The host launches, the device computes; a table has both, and scopes have what they hold."""
    spans = {}

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        model = torch.nn.Linear(256, 256, device="cuda")
        x = torch.ones(64, 256, device="cuda")
        torch.cuda.synchronize()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.profiler.profile(record_shapes=True) as prof:
            first.record()
            with torch.profiler.record_function("step"):
                model(x)
            last.record()
            dist.all_reduce(x)
        assert prof.use_device == "cuda"
        rows = {row.key: row for row in prof.key_averages()}
        assert rows["aten::addmm"].count == rows["addmm"].count == 1
        spent_us = rows["addmm"].self_device_time_total
        assert rows["aten::addmm"].device_time_total == spent_us
        assert rows["step"].device_time_total == spent_us
        assert rows["ncclDevKernel_AllReduce"].self_device_time_total > 0
        (event,) = (event for event in prof.events() if event.name == "aten::addmm")
        assert event.input_shapes == [[256], [64, 256], [256, 256]]
        assert "Self CUDA" in prof.key_averages().table()
        spans[rank] = spent_us, first.elapsed_time(last) * 1e3

    spawn(program, 2)
    for spent_us, between_us in spans.values():
        assert 0 < spent_us <= between_us


@DEVICES
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("backend", ["nccl", None])
def test_a_collectives_kernel_is_linked_to_the_operator_that_launches_it(spawn, backend, is_async):
    """As Kineto has it: readers go from a kernel to its launch, and up to c10d's operator."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group(backend)
        x, y = torch.ones(8, device="cuda"), torch.ones(16, device="cuda")
        with torch.profiler.profile() as prof:
            for work in (
                dist.all_reduce(x, async_op=is_async),
                dist.all_gather_into_tensor(y, x, async_op=is_async),
            ):
                if is_async:
                    work.wait()
        on_host = [event for event in prof.events() if event.device_type == _HOST]
        launches = {event.linked_correlation_id: event for event in on_host}
        found = {}
        for event in prof.events():
            if event.activity_type == "kernel":
                above = launches[event.linked_correlation_id]
                while above.cpu_parent is not None:
                    above = above.cpu_parent
                found[event.name] = above.name
        assert found == {
            "ncclDevKernel_AllReduce": "c10d::allreduce_",
            "ncclDevKernel_AllGather": "c10d::_allgather_base_",
        }
        names = {event.name for event in prof.events()}
        assert {"nccl:all_reduce", "record_param_comms"} <= names

    spawn(program, 2)


@DEVICES
def test_what_was_issued_before_or_by_others_is_not_seen(spawn):
    """Nor what comes after; several profilers at a time see each their own."""

    def program(rank):
        x = torch.ones(8, device=f"cuda:{rank}")
        if rank == 0:
            x.mul_(2)
            with torch.profiler.profile() as outer:
                x.add_(1)
                with torch.autograd.profiler.profile(use_device="cuda") as inner:
                    x.sub_(1)
            x.div_(2)
            names = {event.name for event in outer.events()}
            assert {"aten::add_", "aten::sub_"} <= names
            assert not {"aten::mul_", "aten::div_", "aten::neg_"} & names
            assert "aten::add_" not in {event.name for event in inner.function_events}
        else:
            x.neg_()

    context = spawn(program, 2)
    assert context.engine.observers == []


@DEVICES
def test_the_trace_is_what_tools_of_kineto_read(spawn, tmp_path):
    """Kernels on their streams, joined to what launched them; facts of the program; zipped."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        x = torch.ones(1 << 16, device="cuda")
        with torch.profiler.profile() as prof:
            prof.add_metadata_json("run", json.dumps({"of": "a test"}))
            work = dist.all_reduce(x, async_op=True)
            torch.ones(4).to("cuda")
            work.wait()
        prof.export_chrome_trace(str(tmp_path / f"{rank}.json.gz"))

    spawn(program, 2)
    for rank in range(2):
        trace = json.loads(gzip.decompress((tmp_path / f"{rank}.json.gz").read_bytes()))
        assert trace["distributedInfo"]["rank"] == rank
        assert trace["run"] == {"of": "a test"}
        assert trace["deviceProperties"][rank]["name"] == "H100 SXM"
        slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        kernels = [event for event in slices if event["cat"] == "kernel"]
        assert {event["pid"] for event in kernels} == {rank}
        assert len({event["args"]["stream"] for event in kernels}) == 2
        launches = {event["args"]["External id"]: event for event in slices}
        for kernel in kernels:
            launch = launches[kernel["args"]["correlation"]]
            assert launch["ts"] <= kernel["ts"]
        flows = [event["ph"] for event in trace["traceEvents"] if event["ph"] != "X"]
        assert flows.count("s") == flows.count("f") == len(kernels)


@DEVICES
def test_what_torchs_library_names_is_seen_while_a_profiler_is_open(spawn):
    """Autograd's nodes hold what they launch, DDP says what it does; of the rank alone."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(4, 4).cuda(), device_ids=[rank], find_unused_parameters=True
        )
        x = torch.ones(2, 4, device="cuda")
        model(x).sum().backward()
        if rank == 1:
            model(x).sum().backward()
            return
        with torch.profiler.profile() as prof:
            model(x).sum().backward()
        events = {event.name: event for event in prof.events()}
        nodes = [event for event in prof.events() if event.name == "AddmmBackward0"]
        assert [child.name for child in nodes[0].cpu_children] == ["aten::mm"]
        assert nodes[0].time_range.elapsed_us() > 0
        assert "autograd::engine::evaluate_function: AddmmBackward0" in events
        assert "torch.distributed.ddp.reducer::search_unused_parameters" in events
        assert len(nodes) == 1
        with torch.profiler.profile() as later:
            x.mul(2)
        shown = [(event.name, event.linked_correlation_id) for event in later.events()]
        assert shown == [("aten::mul", 0), ("cudaLaunchKernel", 1), ("mul.Tensor", 1)]

    spawn(program)


@DEVICES
def test_a_trace_says_of_nccls_calls_what_torch_records(spawn, tmp_path):
    """Readers look for `record_param_comms`; waits are some too."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        even = dist.new_group([0, 2], group_desc="every other")
        x = torch.ones(6, device="cuda", dtype=torch.bfloat16)
        with torch.profiler.profile() as prof:
            dist.all_reduce(x, async_op=True).wait()
            if rank != 1:
                dist.all_gather([x.clone(), x.clone()], x, group=even)
        if rank == 0:
            prof.export_chrome_trace(str(tmp_path / "trace.json"))

    spawn(program, 3)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    shown = [each["args"] for each in events if each["name"] == "record_param_comms"]
    assert [each["Collective name"] for each in shown] == ["allreduce", "wait", "all_gather"]
    first, _, last = shown
    assert (first["dtype"], first["In msg nelems"], first["Out msg nelems"]) == ("BFloat16", 6, 6)
    assert first["Process Group Description"] == "default_pg"
    assert first["Process Group Ranks"] == "[0, 1, 2]"
    assert (last["In msg nelems"], last["Out msg nelems"], last["Group size"]) == (6, 12, 2)
    assert (last["Global rank start"], last["Global rank stride"]) == (0, 2)
    assert last["Process Group Description"] == "every other"


@DEVICES
def test_what_goes_wrong_as_a_scope_is_shown_is_raised_by_what_comes_next(spawn, monkeypatch):
    """Nothing gets through torch there: not even the abort of a rank."""

    class Aborted(BaseException):
        """As an abort is none of `Exception`."""

    def fail():
        raise Aborted

    def program(rank):
        x = torch.ones(2, device=f"cuda:{rank}", requires_grad=True)
        y = x.mul(2).sum()
        with torch.profiler.profile():
            monkeypatch.setattr(activation, "flush", fail)
            y.backward()
            monkeypatch.undo()
            with pytest.raises(Aborted):
                torch.cuda.synchronize()

    spawn(program, 1, races="off")  # Else each operation is issued as it is made.
