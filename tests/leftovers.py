"""Print what Contexts leave changed in the standard library and in torch, and how programs ended.

`python leftovers.py NUMBER FILE [--torch]` enters NUMBER Contexts, among them nested and failed
ones, and writes to FILE which modules have been imported. With `--control` it imports those and
does the same work without simrank: what is changed then is Python's and torch's own.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from pathlib import Path
from types import ModuleType

PLAIN = (type(None), bool, int, float, complex, str, bytes, types.CodeType)
OURS = f"{os.sep}simrank{os.sep}"
LOCKS = "simrank.isolation.locks"
NAMES = ("__dict__", "__weakref__", "__doc__", "__builtins__", "__annotations__",
         "__annotations_cache__")  # fmt: skip


def modules(tops):
    """Return the modules of some packages that are loaded."""
    return {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] in tops and isinstance(module, ModuleType)
    }


class Snapshot:
    """What is under each name of modules, of their classes, and of objects that modules hold.

    Attributes:
        values: By place, a tuple of names: the value itself, so that no other gets its identity.
        owners: Places of modules and classes, which have these names and no others.
    """

    def __init__(self, of_torch=False, tops=sys.stdlib_module_names):
        self.values, self.owners = {}, {}
        self._tops = {*tops, "torch"}
        self._seen = set()
        for name, module in modules({*tops, *(("torch",) if of_torch else ())}).items():
            self._take_class((name,), module)
            self._take_names((name,), object.__getattribute__(module, "__dict__"))
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            self.values["signal", "getsignal", number] = signal.getsignal(number)
        for place, look in STATES.items() if of_torch else STATES_OF_PYTHON.items():
            self.values[place] = look()

    def _take_class(self, place, value):
        self.values[*place, "class"] = type(value)

    def _take_names(self, place, names):
        self.owners[place] = frozenset(names)
        for name, value in list(names.items()):
            if name in NAMES or isinstance(value, ModuleType):
                continue
            here = (*place, name)
            self.values[here] = value
            if isinstance(value, PLAIN) or id(value) in self._seen:
                continue
            self._seen.add(id(value))
            self._take_inside(here, value)

    def _take_inside(self, place, value):
        if isinstance(value, type):
            if value.__module__ and str(value.__module__).partition(".")[0] in self._tops:
                self.values[*place, "bases"] = value.__bases__
                self._take_class(place, value)
                self._take_names(place, vars(value))
        elif isinstance(value, types.FunctionType):
            for name in ("__code__", "__defaults__", "__kwdefaults__"):
                self.values[*place, name] = getattr(value, name)
            self._take_entries(place, vars(value))
        elif isinstance(value, dict):
            if place != ("sys", "modules"):
                self._take_entries(place, value)
        elif type(value) in (list, set, frozenset):
            self.values[*place, "length"] = len(value)
            for number, each in enumerate(value if type(value) is list else ()):
                self.values[*place, number] = each
        else:
            self._take_class(place, value)
            names = getattr(value, "__dict__", None)
            if type(names) is dict and self._is_known(type(value)):
                self._take_entries(place, names)

    def _is_known(self, kind):
        return str(kind.__module__).partition(".")[0] in self._tops

    def _take_entries(self, place, entries):
        for key, value in list(entries.items()):
            is_plain = isinstance(key, PLAIN)
            self.values[*place, "length"] = len(entries)
            if not isinstance(value, ModuleType):
                self.values[*place, f"[{key if is_plain else id(key)!r:.40}]"] = value
            if not is_plain:
                self.values[*place, f"key {id(key)}"] = key

    def changes(self, after):
        """Return the values that a later snapshot has changed, by name, but those known to stay."""
        known = tuple(f"{name}." for name in KNOWN)
        named = {".".join(map(str, place)): text for place, text in self._differences(after)}
        return {name: text for name, text in named.items() if not f"{name}.".startswith(known)}

    def _differences(self, after):
        """Yield the places at which a later snapshot has another value, and what it has."""
        for place, value in self.values.items():
            if place not in after.values:
                if not isinstance(value, PLAIN) or place[-1] != "length":
                    yield place, "gone"
            elif not same(value, after.values[place]):
                yield place, f"{value!r:.60} -> {after.values[place]!r:.60}"
        for place, names in self.owners.items():
            for here in ((*place, name) for name in after.owners.get(place, names) - names):
                if after.values.get(here) is not None:
                    yield here, f"new: {after.values[here]!r:.60}"
        for place, value in after.values.items():
            if place not in self.values and is_ours(value) and not is_lock(value):
                yield place, f"simrank's: {value!r:.60}"


def same(one, other):
    """Return whether two values are one; numbers and texts have no identity."""
    if one is other:
        return True
    if type(one) is not type(other) or not isinstance(one, (*PLAIN, tuple)):
        methods = (types.BuiltinMethodType, types.MethodType, types.MethodWrapperType)
        return isinstance(one, methods) and type(one) is type(other) and one == other
    return one == other


def changes_of(folder, number, *options):
    """Return the changes that Contexts leave and the same work without simrank does not."""
    found = []
    for more in ((), ("--control",)):
        command = [sys.executable, "-W", "ignore", __file__, str(number), f"{folder}/modules"]
        command += [*options, *more]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    (ours, ends), (control, _) = found
    return {name: text for name, text in ours.items() if name not in control}, ends


def is_ours(value):
    """Return whether a value is simrank's own: an object, a class, or a function around another."""
    value = getattr(value, "fget", None) or getattr(value, "func", None) or value
    value = getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    if isinstance(code, types.CodeType):
        return OURS in code.co_filename
    home = getattr(value if isinstance(value, type) else type(value), "__module__", None)
    return isinstance(home, str) and home.partition(".")[0] == "simrank"


def is_lock(value):
    """Return whether a value is a lock that a module made as it was imported in a Context.

    Its holders share it, so it stays; outside of Contexts it is the native lock within it.
    """
    return (value if isinstance(value, type) else type(value)).__module__ == LOCKS


STATES_OF_PYTHON = {
    ("sys", "trace"): sys.gettrace,
    ("sys", "profile"): sys.getprofile,
    ("sys", "getswitchinterval()"): sys.getswitchinterval,
    ("gc", "isenabled()"): gc.isenabled,
    ("gc", "threshold"): gc.get_threshold,
}
STATES = dict(STATES_OF_PYTHON)

# What stays by intention, beside what the same work leaves without simrank (`--control`).
KNOWN = {
    "sys.excepthook": "prints the report of the final error, which comes after the Context",
    "threading._active": "threads of ranks that `os._exit` ended: no code of theirs runs on",
    "typing._overload_registry": "Python's, by module: simrank's are among them",
    "linecache.cache": "Python's, by file",
    "_ctypes._pointer_type_cache": "Python's, by type",
    "ctypes._endian.pythonapi": "Python's, by name",
    "torch._C.Generator.class": "torch gives it one itself from 2.13 on",
    "torch.ops._dir": "namespaces of operators: simrank's library stays loaded",
    "torch.utils.hooks.RemovableHandle.next_id": "a counter",
    "torch._dynamo.trace_rules.SKIP_DIRS": "Dynamo passes over simrank's frames",
    "torch._dynamo.trace_rules.SKIP_DIRS_RE": "likewise",
}


def states_of_torch():
    """Return the getters of torch's flags in C++, which take no argument."""
    import torch

    found = {}
    for name in dir(torch._C):
        if name.startswith(("_get_", "is_", "_is_", "get_")):
            look = getattr(torch._C, name)
            try:
                if isinstance(look(), (*PLAIN, torch.dtype, tuple)):
                    found["torch._C", f"{name}()"] = look
            except Exception:  # noqa: BLE001 - it takes arguments, or is of another build
                continue
    found["torch", "get_num_threads()"] = torch.get_num_threads
    found["torch", "rng"] = lambda: bytes(torch.get_rng_state().numpy())
    return found


# ---- programs ----


class BrokenError(Exception):
    """An error of a program."""


def sets_names(rank):
    """Set what ranks have for themselves of the standard library."""
    import logging
    import random

    random.seed(rank)
    os.environ["SIMRANK_OF_RANK"] = str(rank)
    os.chdir("/")
    os.cpu_count = lambda: rank
    logging.root.setLevel(10 + rank)
    logging.captureWarnings(True)
    logging.setLoggerClass(type("OfRank", (logging.Logger,), {}))
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGUSR1, lambda *_: None)
    threading.excepthook = sys.excepthook = print
    sys.stdout = sys.stderr = sys.__stdout__
    sys.argv = ["of", "rank"]


def waits(rank):
    """Wait, in event loops and locks, and patch names meanwhile."""
    import asyncio
    from unittest import mock

    with mock.patch("os.getcwd", str), mock.patch.object(time, "ctime", str):
        time.sleep(1e-6)
    asyncio.run(asyncio.sleep(1e-6))
    condition = threading.Condition()
    with condition:
        condition.wait(1e-6 * (rank + 1))


def starts_threads(rank):
    """Start threads, which ranks on greenlets may not."""
    import concurrent.futures
    import queue

    box = queue.Queue()
    thread = threading.Thread(target=lambda: (time.sleep(1e-3), box.put(rank)))
    thread.start()
    assert box.get() == rank
    thread.join()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert [*pool.map(abs, range(3))] == [0, 1, 2]


def fails(rank):
    """Raise an error while the other rank waits, and attributes are replaced."""
    from unittest import mock

    import simrank.distributed as dist

    dist.init_process_group("nccl")
    with mock.patch("os.getcwd", str):
        if rank == 1:
            raise BrokenError
        dist.barrier()


def deadlocks(rank):
    """Wait for a message that nobody sends."""
    import simrank.distributed as dist

    dist.init_process_group("nccl")
    if rank == 0:
        dist.barrier()


def mismatches(rank):
    """Call another collective than the other rank."""
    import simrank.distributed as dist

    dist.init_process_group("nccl")
    (dist.barrier if rank else lambda: dist.all_gather_object([None] * 2, 1))()


def is_interrupted(rank):
    """Get Ctrl-C."""
    if rank == 1:
        raise KeyboardInterrupt


def is_killed(rank):
    """End at once, within a block."""
    from unittest import mock

    with mock.patch("os.getcwd", str):
        os._exit(rank)


def imports(rank):
    """Import modules late that are patched when they are."""
    import sched
    import timeit

    assert sched.scheduler().empty()
    assert timeit.default_timer() >= 0.0 * rank


def enters(rank):
    """Enter a Context in a rank, which fails on one of them."""
    import simrank

    with simrank.Context("hgx_h100") as inner:
        inner.multiprocessing.spawn(sets_names, nprocs=2)
    if rank == 1:
        with simrank.Context("hgx_h100") as inner:
            inner.multiprocessing.spawn(fails, nprocs=2)


def trains(rank):
    """Use devices, groups, DDP, graphs, streams, symmetric memory and a mesh of torch."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    bound = torch.device("cuda", rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=bound)
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x += 1
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.Event().record()
    memory = torch.distributed._symmetric_memory.empty(4, device="cuda")
    torch.distributed._symmetric_memory.rendezvous(memory, dist.group.WORLD)
    mesh = dist.init_device_mesh("cuda", (2,))
    torch.distributed.tensor.distribute_tensor(torch.ones(4, 4), mesh)
    dist.destroy_process_group()


def sets_flags(rank):
    """Set flags, hooks and a seed of torch, on threads of the rank too, and fail on one rank."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(rank)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.autograd.set_detect_anomaly(True)
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    torch.Tensor.of_rank = rank
    torch.nn.Module.of_rank = rank
    torch.backends.cudnn.benchmark = True
    thread = threading.Thread(target=lambda: torch.rand(2))
    thread.start()
    thread.join()
    dist.barrier()
    if rank == 1:
        raise BrokenError


def waits_in_torch(rank):
    """Wait on one rank for a collective that the other one never calls."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    if rank == 0:
        dist.all_reduce(torch.ones(4, device="cuda:0")[:2])


def differs_in_torch(rank):
    """Call collectives of unlike shapes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4 + rank))


def enters_with_torch(rank):
    """Enter a Context in a rank of torch."""
    import simrank

    with simrank.Context("hgx_h100") as inner:
        inner.multiprocessing.spawn(reduces, nprocs=2)
    if rank == 1:
        with simrank.Context("hgx_h100") as inner:
            inner.multiprocessing.spawn(fails, nprocs=2)


def reduces(rank):
    """Reduce tensors of the host."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    x = torch.full((2,), float(rank))
    dist.all_reduce(x)
    assert x[0] == 1


def compiles(rank):
    """Compile a function, on each rank another."""
    import torch

    torch._dynamo.reset()
    assert torch.compile(lambda x: x * (rank + 2), backend="eager")(torch.ones(2))[0] == rank + 2


PROGRAMS = [
    sets_names, waits, starts_threads, fails, deadlocks, mismatches, is_interrupted, is_killed,
    imports, enters,
]  # fmt: skip
OF_TORCH = [trains, sets_flags, waits_in_torch, differs_in_torch, enters_with_torch, compiles]


def fails_to_enter(number):
    """Enter a Context while a patch cannot be made: the first of all, or one in the middle."""
    import simrank
    from simrank.isolation import stdlib

    def make(_=None):
        raise BrokenError

    name = ("_patches", "_replace_locks")[number % 2]
    before = getattr(stdlib, name)
    setattr(stdlib, name, make)
    try:
        with simrank.Context("hgx_h100"):
            raise AssertionError("it cannot be entered")
    except BrokenError:
        pass
    finally:
        setattr(stdlib, name, before)


def run(program, carrier):
    """Run a program in a Context; return how it ended."""
    import simrank
    from simrank.errors import SimrankError

    try:
        with simrank.Context("hgx_h100", carrier=carrier) as context:
            context.multiprocessing.spawn(program, nprocs=2)
    except (SimrankError, BrokenError, KeyboardInterrupt, SystemExit) as error:
        return type(error).__name__
    return None


def run_all(number, programs):
    """Enter Contexts: of all programs in turn, with both carriers, alone and nested."""
    import simrank

    ends = {}
    for count in range(number):
        program = programs[count % len(programs)]
        turn = "thread" if count // len(programs) % 2 else "greenlet"
        carrier = "auto" if program in OF_TORCH else turn
        if count % 9 == 4:
            fails_to_enter(count)
        with simrank.Context("hgx_h100") if count % 3 == 2 else contextlib.nullcontext():
            ends.setdefault(program.__name__, []).append(run(program, carrier))
    return ends


def run_plainly(of_torch):
    """Do in this process, as a job of one worker, what the programs do."""
    waits(0)
    starts_threads(0)
    imports(0)
    if not of_torch:
        return
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    mesh = dist.init_device_mesh("cpu", (1,))
    torch.distributed.tensor.distribute_tensor(torch.ones(4, 4), mesh)
    dist.destroy_process_group()
    compiles(0)


def import_torch():
    """Import what the programs of torch use."""
    for name in (
        "torch._dynamo.device_interface", "torch._inductor.codecache", "torch.distributed.fsdp",
        "torch.distributed._symmetric_memory", "torch.distributed.tensor",
    ):  # fmt: skip
        importlib.import_module(name)


def main():
    """Print the leftovers of Contexts, or of the same work without one, and how programs ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("modules", type=Path, help="Contexts list here what has been imported")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--control", action="store_true")
    asked = parser.parse_args()
    if asked.torch:
        import_torch()
        STATES.update(states_of_torch())
    importlib.import_module("simrank").Context("hgx_h100")  # It imports what simrank depends on.
    ends = {}
    before = Snapshot(asked.torch)
    if asked.control:
        for name in asked.modules.read_text().split():
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        run_plainly(asked.torch)
    else:
        ends = run_all(asked.number, [*PROGRAMS, *(OF_TORCH if asked.torch else ())])
        asked.modules.write_text("\n".join(n for n in sys.modules if n[:7] != "simrank"))
    gc.collect()
    print(json.dumps([before.changes(Snapshot(asked.torch)), ends]))  # noqa: T201 - for tests


if __name__ == "__main__":
    main()
