"""What a rank meets as it first uses a device is what it would meet later."""

import inspect
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
import time
import warnings
from importlib.util import find_spec

import pytest
import torch
import torch.utils.checkpoint as _  # noqa: F401 - it is used below

import simrank
from simrank.torch import cuda
from simrank.torch.devices import activation

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)


USES = [
    "torch.cuda.get_rng_state()",
    "torch.cuda.initial_seed()",
    "len(torch.cuda.get_rng_state_all())",
    "torch.cuda.random.device_count()",
    "torch.get_device_module('cuda').get_rng_state()",
    "torch.random.fork_rng().__enter__()",
    "torch.random.fork_rng(devices=[1]).__enter__()",
    "len(torch.cuda.default_generators)",
    "torch.cuda.default_generators[1].device",
    "torch.Generator('cuda').device",
    "torch.Generator(device=torch.device('cuda', 1)).manual_seed(3).initial_seed()",
    "torch.Generator(0).device",
    "type(torch.cuda.CUDAGraph())",
    "callable(torch.cuda.CUDAGraph.register_generator_state)",
    "torch.cuda.graph_pool_handle()[0]",
    "torch.cuda.is_current_stream_capturing()",
    "torch.cuda.MemPool()",
    "torch.cuda.ExternalStream(0)",
    "torch.cuda.Stream.priority_range()",
    "torch.Stream('cuda').device",
    "torch.Event('cuda').device",
    "torch.cuda.memory_snapshot()",
    "torch.cuda.memory._record_memory_history(None)",
    "torch.cuda.get_allocator_backend()",
    "torch.cuda.get_per_process_memory_fraction()",
    "torch.cuda.get_arch_list()",
    "torch.cuda.get_gencode_flags()",
    "torch.cuda.reset_peak_host_memory_stats()",
    "torch.cuda._sleep(10)",
    "torch._C._cuda_getCurrentRawStream(0)",
    "torch.cuda.nvtx.mark('here')",
    "torch.backends.cuda.is_built()",
    "torch.UntypedStorage(4, device='cuda').device",
    "torch.cuda.FloatStorage(2).device",
    "torch.cuda.FloatTensor([1.0])",
    "torch.ones(1).type(torch.cuda.FloatTensor)",
    "torch.ones(1).type('torch.cuda.HalfTensor')",
    "isinstance(torch.ones(1, device='cuda'), torch.cuda.FloatTensor)",
    "torch.nn.parallel.comm.broadcast(torch.ones(1), [0, 1])[1].device",
    "torch.nn.Linear(1, 1).to(1).weight.device",
    "torch.nn.Linear(1, 1, device='cuda').weight.device",
    "torch.utils.checkpoint.get_device_states(torch.ones(1))",
    "torch.accelerator.current_stream()",
    "torch.accelerator.memory_allocated()",
    "torch.accelerator.current_device_index()",
    "torch.ones(1).pin_memory().is_pinned()",
    "torch.amp.GradScaler('cuda').is_enabled()",
    "torch.tensor([1], device='cuda')",
    "torch.cuda.manual_seed_all(2) or torch.cuda.initial_seed()",
]
# What may differ: random numbers; state of devices that are not on, as in CUDA builds, too.
DIFFERS = {
    "seed", "is_initialized", "memory_stats", "memory_stats_as_nested_dict",
    "host_memory_stats", "host_memory_stats_as_nested_dict", "graph_pool_handle",
    "caching_allocator_delete",  # It needs what was allocated.
    "range_push", "range_pop", "range_start",  # Ranges nest, and are counted.
    "Graph",  # Refused by torch in either case, in other words.
}  # fmt: skip
MODULES = [
    "torch.cuda", "torch.cuda.memory", "torch.cuda.random", "torch.cuda.graphs",
    "torch.cuda.streams", "torch.cuda.nvtx", "torch.cuda.amp", "torch.cuda.nccl", "torch.random",
    "torch.accelerator", "torch.accelerator.memory", "torch.backends.cuda", "torch.amp",
]  # fmt: skip
# By the name of a parameter.
ARGUMENTS = {
    "device": 0, "device_type": "cuda", "enabled": True, "fraction": 0.5, "index": 0, "msg": "here",
    "name": "here", "obj": torch.ones(1), "offset": 0, "peer_device": 1, "seed": 1, "size": 512,
    "stream": None, "stream_ptr": 0, "data_ptr": 0, "tensor": torch.ones(1), "new_states": [],
}  # fmt: skip


def _outcome(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = call()
            if hasattr(found, "__enter__"):
                with found:
                    pass
        except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
            return type(error).__name__, str(error)[:120]
    return type(found).__name__, re.sub(" at 0x[0-9a-f]+", "", repr(found))


def _asked(call, *, first):
    """Return what a fresh rank gets, as its first statement or later."""
    outcomes = []

    def program(rank):
        if not first:
            torch.cuda.init()
            assert activation.is_enabled()
        outcomes.append(_outcome(call))

    with simrank.Context.for_ranks(1) as context:
        context.multiprocessing.spawn(program, (), 1, share_args=True)
    return outcomes[0]


@pytest.fixture(scope="module")
def later():
    """Return what a rank with devices gets, by what it does."""
    found = {}

    def program(rank):
        torch.cuda.init()
        for use in USES:
            found[use] = _outcome(lambda use=use: eval(use))  # noqa: S307 - the text is above

    with simrank.Context.for_ranks(1) as context:
        context.multiprocessing.spawn(program, (), 1, share_args=True)
    return found


@pytest.mark.parametrize("use", USES)
def test_the_first_use_of_a_device_is_as_any_other(use, later):
    """Of names that torch's modules import, make, or that only CUDA builds have."""
    first = _asked(lambda: eval(use), first=True)  # noqa: S307 - the text is above
    assert first == later[use]
    assert first[0] not in {"AttributeError", "AssertionError", "RuntimeError", "TypeError"}, first


def _arguments(function):
    """Return what to call a function with, or None where nothing is known that would do."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return []
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return [ARGUMENTS[name] for name in needed] if ARGUMENTS.keys() >= set(needed) else None


def _public_calls():
    seen = set()
    for module in map(inspect.importlib.import_module, MODULES):
        for name, value in vars(module).items():
            home = str(getattr(value, "__module__", ""))
            is_ours = home.startswith(("torch.cuda", "torch.random", "torch.acc", "torch.backends"))
            if name.startswith("_") or name in DIFFERS or not callable(value) or not is_ours:
                continue
            arguments = _arguments(value)
            if arguments is not None and id(value) not in seen:
                seen.add(id(value))
                yield module, name, arguments


@pytest.mark.slow
def test_every_public_function_does_first_what_it_does_later():
    """All of torch.cuda and what is beside it that can be called with what is above."""
    differing, num_called = {}, 0
    for module, name, arguments in _public_calls():

        def call(module=module, name=name, arguments=arguments):
            return getattr(module, name)(*arguments)

        num_called += 1
        first, later = (_asked(call, first=is_first) for is_first in (True, False))
        if first != later:
            differing[f"{module.__name__}.{name}"] = first, later
    assert not differing
    assert num_called > 120


def test_what_needs_no_device_turns_none_on(spawn):
    """Generators and storages of the host, modules that stay there, names that nobody has."""

    def program(rank):
        torch.Generator().manual_seed(1)
        torch.Generator("cpu")
        torch.UntypedStorage(4)
        torch.nn.Linear(1, 1).to("cpu", non_blocking=True).to(torch.float64)
        torch.nn.Linear(1, 1, device="meta")
        assert hasattr(torch._C, "_cuda_getDeviceCount") == activation.is_built()
        assert not hasattr(torch._C, "of_nobody")
        assert hasattr(torch._C, "_cuda_memorySnapshot")  # To look for it is no use.
        assert isinstance(torch.default_generator, torch.Generator)
        assert not activation.is_enabled()

    spawn(program, 2)


def test_outside_of_ranks_first_uses_are_those_of_the_build():
    """Within a Context, too."""
    if torch.backends.cuda.is_built():
        pytest.skip("torch has what is missing elsewhere")
    uses = [
        "torch.Generator('cuda')", "torch.cuda.CUDAGraph()", "torch.cuda.get_rng_state()",
        "torch.cuda.memory_snapshot()", "torch.cuda.default_generators[0]",
        "torch.cuda.get_arch_list()", "torch.cuda.nvtx.mark('here')", "torch.cuda.Stream()",
    ]  # fmt: skip
    before = [_outcome(lambda use=use: eval(use)) for use in uses]  # noqa: S307 - the text is above
    with simrank.Context("hgx_h100"):
        meanwhile = [_outcome(lambda use=use: eval(use)) for use in uses]  # noqa: S307
    assert meanwhile == before
    assert [_outcome(lambda use=use: eval(use)) for use in uses] == before  # noqa: S307


def test_a_rank_without_devices_gets_a_cpu_builds_answers(spawn, monkeypatch):
    """What is missing there is missing, and said so by torch."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def program(rank):
        assert len(torch.cuda.default_generators) == 0
        assert torch.cuda.get_arch_list() == []
        for use in (
            torch.cuda.get_rng_state,
            torch.cuda.CUDAGraph,
            torch.cuda.memory_snapshot,
            lambda: torch.Generator("cuda"),
        ):
            with pytest.raises(AssertionError, match="Torch not compiled with CUDA"):
                use()

    spawn(program, 1)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_the_class_of_generators_is_torchs_own(spawn):
    """Its constructor is patched through its class, which earlier releases do not have."""

    class Mine(torch.Generator):
        pass

    @torch.jit.script
    def draw(generator: torch.Generator | None):
        return torch.rand(1, generator=generator)

    def program(rank):
        for kind in (torch.Generator, Mine):
            for device in ("cpu", "cuda"):
                generator = kind(device)
                assert type(generator) is kind
                assert isinstance(generator, torch.Generator)
                assert generator.device.type == device
        assert not isinstance(rank, torch.Generator)
        with pytest.raises(TypeError):
            torch.rand(1, generator=rank)

    spawn(program, 1)
    assert torch.Generator.__module__ == torch._C.Generator.__module__ == "torch._C"
    assert pickle.loads(pickle.dumps(torch.Generator)) is torch.Generator
    assert draw(torch.Generator().manual_seed(1)) == draw(Mine().manual_seed(1))


@pytest.mark.slow
def test_torchs_compiler_looks_for_all_that_cuda_builds_have_and_uses_nothing(spawn):
    """As it is imported: by a rank of a program for the CPU, too."""

    def program(rank):
        import torch._dynamo.trace_rules as rules

        rules.get_torch_obj_rule_map.__wrapped__()
        assert not activation.is_enabled()

    spawn(program, 1)


def test_devices_are_turned_on_in_one_go(spawn, monkeypatch):
    """Whatever reads the clock meanwhile (a callback of the collector): nobody's turn begins."""
    original, seen = cuda.enable, []

    def enable(*args, **kwargs):
        seen.append(os.environ["RANK"])
        time.perf_counter()
        original(*args, **kwargs)
        time.perf_counter()

    monkeypatch.setattr(cuda, "enable", enable)

    def program(rank):
        time.perf_counter()
        assert torch.ones(1, device="cuda").item() == 1

    spawn(program, 2)
    assert seen == ["0"]


# ---- the GPUs that the main program of a suite is told of ----

NEEDS_EXPECTTEST = pytest.mark.skipif(
    find_spec("expecttest") is None, reason="PyTorch's test classes need expecttest"
)

SUITE = """
import torch
import torch.distributed as dist
from torch.testing._internal.common_cuda import TEST_CUDA
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_distributed import MultiProcessTestCase, MultiThreadedTestCase

NUM_GPUS = torch.cuda.device_count()

def test_the_main_program_sees_them():
    assert TEST_CUDA and NUM_GPUS == 4 and torch.accelerator.device_count() == 4
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.accelerator.current_accelerator().type == "cuda"
    assert dist.is_nccl_available() and torch.cuda.nccl.version() > (2, 0)

class Processes(MultiProcessTestCase):
    world_size = NUM_GPUS

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_ranks_see_as_many(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("nccl", store=store, rank=self.rank, world_size=self.world_size)
        assert torch.cuda.device_count() == NUM_GPUS
        torch.cuda.set_device(self.rank)
        tensor = torch.ones(2, device="cuda")
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((2,), 4.0))

class OfDeviceTypes(Processes):
    def test_of_a_kind_of_device(self, device):
        assert device.startswith("cuda")

instantiate_device_type_tests(OfDeviceTypes, globals(), only_for="cuda")

class Threads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_threads_share_a_device(self):
        tensor = torch.ones(2, device="cuda:1")
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((2,), 2.0))
"""


@pytest.mark.slow
@NEEDS_EXPECTTEST
def test_a_suite_chooses_by_the_devices_that_the_main_program_sees(tmp_path, monkeypatch):
    """It computes on none; ranks see as many, and threads of one process may share one."""
    (tmp_path / "test_suite.py").write_text(textwrap.dedent(SUITE))
    line = "import simrank.torch.testing; simrank.torch.testing.simulate()\n"
    (tmp_path / "conftest.py").write_text(line)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stdout
    assert "5 passed" in out, out


MAIN = """
import simrank.torch.testing; simrank.torch.testing.simulate()
import torch
from simrank.torch import cuda
print(torch.cuda.can_device_access_peer(0, 1))
try:
    torch.cuda.can_device_access_peer(0, 8)
except AssertionError as error:
    print(error)
free, total = torch.cuda.mem_get_info("cuda:1")
print(free == total == torch.cuda.get_device_properties(1).total_memory)
stream = torch.accelerator.current_stream()
print(torch.accelerator.current_device_index(), stream.device, stream.is_capturing())
print(torch.get_device_module() is torch.cuda, torch.get_device_module("cpu") is torch.cpu)
parameter = torch.nn.Parameter(torch.ones(1))
parameter.grad = torch.ones(1)
torch.optim.Adam([parameter], lr=0.5).step()
print(round(parameter.item(), 3))
with cuda.standalone(2):
    torch.cuda.set_device(1)
    print(torch.cuda.device_count(), torch.cuda.current_device())
print(torch.cuda.device_count())
"""


@pytest.fixture(scope="module")
def told():
    """Lines that the main program of a suite prints."""
    command = [sys.executable, "-c", MAIN]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@NEEDS_EXPECTTEST
def test_the_main_program_is_told_of_peers_memory_and_idle_streams(told):
    """So that suites are collected as on GPUs, and plain tests can step an optimizer."""
    assert told[:6] == [
        "True", "Invalid device id", "True", "0 cuda:0 False", "True True", "0.5",
    ]  # fmt: skip


@NEEDS_EXPECTTEST
def test_devices_of_a_test_of_its_own_are_those_it_has(told):
    """Devices that are shown to the main program do not take their place."""
    assert told[6:] == ["2 1", "8"]
