"""torch's profilers show what a rank issued, in simulated time."""

import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402


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
