"""Patches of torch while a Context is entered; programs outside of ranks see torch's own."""

from __future__ import annotations

import functools
import operator
import os
import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from simrank.device.tensors.printing import ADDRESSES, READERS, WHOLE_READERS
from simrank.distributed.backends import default_timeout, is_simulated
from simrank.engine import callsite
from simrank.isolation import blocking_calls, contracts
from simrank.isolation.libraries import RegisteredLibrary
from simrank.isolation.mock_patches import PER_THREAD, SharedModule
from simrank.multiprocessing import children
from simrank.multiprocessing import spawn as simulated_spawn
from simrank.multiprocessing import start_processes as simulated_start
from simrank.ranks.current import in_ranks, rank_program
from simrank.torch.cuda.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.isolation.libraries import LibraryState
    from simrank.ranks import Program

Patches = list[tuple[Any, str, Any]]
_warned: set[str] = set()
_LOGGED_VARIABLES = ("MASTER_PORT", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT")
# Imported before ranks start: it takes the running rank's WORLD as a default argument.
_BEFORE_RANKS = ("torch.distributed.nn.functional",)


def check_version(module: ModuleType) -> None:
    """Warn once of a release of torch that simrank is not tested with, and look its names up.

    Args:
        module: The module torch.

    Raises:
        UnsupportedError: Names that simrank uses are not there.
    """
    version = str(module.__version__)
    from simrank.torch.releases import TESTED, release_of  # noqa: PLC0415 - it needs torch

    if version.partition("+")[0] in TESTED:
        return
    minors = {release_of(each) for each in TESTED}
    if release_of(version) not in minors and version not in _warned:
        _warned.add(version)
        warnings.warn(
            f"simrank is tested with torch {', '.join(TESTED)}, not with {version}: its "
            "internals may differ\n"
            f"  to fix: pip install 'torch=={TESTED[-1]}'",
            stacklevel=2,
        )
    if unknown := _unknown_uses(version):
        raise contracts.unsupported(module, unknown)


@functools.cache
def _unknown_uses(version: str) -> list[str]:
    del version  # The key.
    from simrank.torch.contacts import known_unknown_uses  # noqa: PLC0415 - seldom

    return known_unknown_uses()


def patches(module: ModuleType) -> Patches:
    """Return the patches of torch: owner, name and new value."""
    check_version(module)
    callsite.skip_package("torch")
    PER_THREAD.add("torch.utils._config_module")
    if _text_of not in READERS:
        READERS.append(_text_of)
        WHOLE_READERS.append(_whole_text_of)
        ADDRESSES.append(_address_of)
    for name in _BEFORE_RANKS:
        import_module(name)
    from simrank.torch import deferred_dynamo  # noqa: PLC0415 - it needs torch
    from simrank.torch.devices import launches  # noqa: PLC0415 - it needs torch
    from simrank.torch.rank_state import settings  # noqa: PLC0415 - it needs torch
    from simrank.torch.symmetric import memory  # noqa: PLC0415 - it needs torch

    launches.install()
    memory.install()
    # The first keep what ranks have made: they go with the Context.
    return [
        *settings.hook_patches(), _keeping_works(), *_lasting(), deferred_dynamo.patch(),
        (blocking_calls, "answer_command", _answer_command),
    ]  # fmt: skip


def _answer_command(command: Sequence[str]) -> str | None:
    """Answer what a rank asks `nvidia-smi` of its simulated devices."""
    if not command or os.path.basename(command[0]) != "nvidia-smi":
        return None
    from simrank.torch.cuda import smi  # noqa: PLC0415 - it needs torch

    return smi.answer(command)


class _Made(NamedTuple):
    """Patches, and the originals that they wrap.

    Attributes:
        names: Of torch's modules.
        patches: What to replace, and by what.
        originals: What was there.
    """

    names: list[str]
    patches: Patches
    originals: list[Any]

    def is_current(self) -> bool:
        """Return whether torch's patched names are unchanged."""
        if self.names != _torchs_modules(tuple(sys.modules)):
            return False
        return all(map(operator.is_, _originals(self.patches), self.originals))


_ABSENT = object()
_last: list[_Made] = []


def _lasting() -> Patches:
    """Return the patches that all Contexts share; making them takes 10 ms."""
    if not (_last and _last[0].is_current()):
        found = _make()
        _last[:] = [_Made(_torchs_modules(tuple(sys.modules)), found, [*_originals(found)])]
    return _last[0].patches


def _make() -> Patches:
    from simrank.torch import compiling, profiler, unsupported  # noqa: PLC0415 - it needs torch
    from simrank.torch.groups import dispatch, flight_records  # noqa: PLC0415 - it needs torch
    from simrank.torch.rank_state import (  # noqa: PLC0415 - it needs torch
        caches,
        custom_operators,
        data_loader,
        safe_globals,
        settings,
    )
    from simrank.torch.rank_state.turns import look_at_classes, show_own_classes  # noqa: PLC0415 - it needs torch

    return [
        *_of_distributed(), *_of_parallel(), *_of_multiprocessing(),
        *profiler.patches(), *settings.patches(), *caches.patches(),
        (_Shared(), "is_on", True),
        (Switch(show_own_classes), "is_on", True),
        (Switch(lambda is_on: look_at_classes() if is_on else None), "is_on", True),
        *compiling.patches(), *data_loader.patches(),
        *flight_records.patches(), *unsupported.patches(),
        *dispatch.patches(), *custom_operators.patches(), *safe_globals.patches(),
        *_of_cuda(),
    ]  # fmt: skip


def _originals(patches: Patches) -> Iterator[Any]:
    """Yield the current values of patched names."""
    return (getattr(owner, name, _ABSENT) for owner, name, _ in patches)


@functools.lru_cache(maxsize=2)
def _torchs_modules(names: tuple[str, ...]) -> list[str]:
    """Return the names of torch's modules; a search takes 0.5 ms."""
    return [name for name in names if name.startswith("torch.")]


class _Shared(Switch):
    """Switch that makes torch's modules swap attributes that a rank sets.

    One switch for all of them, as there are hundreds.

    Attributes:
        modules: The imported ones.
    """

    def __init__(self) -> None:
        super().__init__(self._turn_all)
        self.modules = [
            module
            for name, module in sys.modules.copy().items()
            if (name == "torch" or name.startswith("torch.")) and type(module) is ModuleType
        ]

    def _turn_all(self, is_on: bool) -> None:
        for module in self.modules:
            module.__class__ = SharedModule if is_on else ModuleType


def _text_of(value: object) -> str | None:
    from simrank.torch.devices import buffers  # noqa: PLC0415 - it needs torch

    return buffers.text_of(value)


def _whole_text_of(value: object) -> str | None:
    from simrank.torch.devices import buffers  # noqa: PLC0415 - it needs torch

    return buffers.whole_text_of(value)


def _address_of(value: object) -> int | None:
    from simrank.torch.devices import buffers  # noqa: PLC0415 - it needs torch

    return buffers.address_of(value)


def _of_distributed() -> Patches:
    from simrank.torch.cuda.bindings import nccl_versions  # noqa: PLC0415 - it needs torch
    from simrank.torch.groups import group, registry, stores  # noqa: PLC0415 - it needs torch
    from simrank.torch.groups.identity import compared_coordinates, compared_group_rank  # noqa: PLC0415 - it needs torch

    c10d: Any = import_module("torch.distributed.distributed_c10d")
    dist: Any = import_module("torch.distributed")
    rendezvous: Any = sys.modules["torch.distributed.rendezvous"]
    isolation: Any = import_module("torch._C._distributed_c10d")._set_thread_isolation_mode  # noqa: SLF001 - torch's name
    replaced: Patches = [
        # What ranks leave in globals of `init_process_group` goes with the Context.
        *((c10d, name, vars(c10d)[name]) for name in ("_backend", "_default_pg_init_method")),
        (c10d._world, "__class__", registry.RankWorld),  # noqa: SLF001 - torch's place to override
        # Likewise the seeds that ranks leave for devices which the process lacks.
        *_seeds_for_later(),
        # C++ keeps a registry of groups for each native thread.
        (Switch(isolation), "is_on", True),
        (
            c10d,
            "_new_process_group_helper",
            registry.make_new_group(c10d._new_process_group_helper),  # noqa: SLF001 - torch's name
        ),
    ]
    destroy = registry.make_destroy(c10d.destroy_process_group)
    replaced += [(owner, "destroy_process_group", destroy) for owner in (c10d, dist)]
    for owner in (c10d, dist):
        for name in ("nccl", "gloo"):
            asked = f"is_{name}_available"
            replaced.append((owner, asked, in_ranks(lambda: True, getattr(owner, asked))))
    name = "_check_single_backend_availability"
    replaced.append((c10d, name, _knowing_simulated(getattr(c10d, name))))
    replaced += registry.patches((c10d, dist)) + group.patches()
    bindings: Any = import_module("torch._C")
    if not hasattr(bindings, "_nccl_version"):
        replaced += [(bindings, name, answer) for name, answer in nccl_versions().items()]
    constants: Any = import_module("torch.distributed.constants")
    for owner in (c10d, constants):
        if owner.default_pg_nccl_timeout is None:
            replaced.append((owner, "default_pg_nccl_timeout", default_timeout("nccl")))
    replaced += stores.waiting_methods()
    in_group = compared_group_rank(c10d.get_group_rank)
    replaced += [(owner, "get_group_rank", in_group) for owner in (c10d, dist)]
    mesh: Any = import_module("torch.distributed.device_mesh").DeviceMesh
    replaced.append((mesh, "get_coordinate", compared_coordinates(mesh.get_coordinate)))
    for name in ("TCPStore", "FileStore", "HashStore", "PrefixStore"):
        original = getattr(dist, name)
        patch = stores.dispatching(original, getattr(stores, name))
        owners = [owner for owner in (dist, c10d, rendezvous) if hasattr(owner, name)]
        replaced += [(owner, name, patch) for owner in owners]
    return replaced


def _seeds_for_later() -> Patches:
    name, found = "_lazy_seed_tracker", (import_module("torch.mtia"), import_module("torch.xpu"))
    return [(module, name, type(vars(module)[name])()) for module in found if name in vars(module)]


def _of_parallel() -> Patches:
    from simrank.isolation.torch_settings import Setting  # noqa: PLC0415 - it needs torch
    from simrank.torch.optimizer_steps import recording_init  # noqa: PLC0415 - likewise
    from simrank.torch.rank_state.settings import noting  # noqa: PLC0415 - likewise

    parallel: Any = import_module("torch.nn.parallel")
    kind: Any = parallel.DistributedDataParallel
    original = kind._get_ddp_logging_data  # noqa: SLF001 - torch's name

    @functools.wraps(original)
    def logged(self: Any) -> dict[str, Any]:
        """Return the logging data of the rank: C++ would read the process's environment."""
        data: dict[str, Any] = original(self)
        group = self.process_group
        if rank_program() is not None:
            data["backend_name"] = group.name()
            data |= {name.lower(): os.environ.get(name, "N/A") for name in _LOGGED_VARIABLES}
            if group.name() == "gloo":
                data["gloo_num_threads"] = 2  # As torch starts it.
        return data

    register = kind._register_builtin_comm_hook  # noqa: SLF001 - torch's name

    @functools.wraps(register)
    def registered(self: Any, comm_hook_type: Any) -> None:
        """Register a built-in communication hook as the same hook in Python."""
        if rank_program() is None:
            register(self, comm_hook_type)
            return
        dist: Any = import_module("torch.distributed")
        hooks: Any = import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
        name = {"ALLREDUCE": "allreduce_hook", "FP16_COMPRESS": "fp16_compress_hook"}
        self.logger._set_comm_hook_name(str(comm_hook_type))  # noqa: SLF001 - as torch does
        hook = getattr(hooks, name[comm_hook_type.name])
        dist._register_comm_hook(self.reducer, self.process_group, hook)  # noqa: SLF001 - likewise

    before_forward = kind._pre_forward  # noqa: SLF001 - torch's name

    @functools.wraps(before_forward)
    def joining(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Begin a forward; in a Join it starts calls that torch itself does not wait for."""
        program = rank_program()
        if program is None or not self._join_config.enable:
            return before_forward(self, *args, **kwargs)
        leaks = self.process_group.simulated.world.comm_library.leaks
        with leaks.of_library(program.rank):
            return before_forward(self, *args, **kwargs)

    def activate(model: Any) -> None:
        kind._active_ddp_module = model  # noqa: SLF001 - likewise

    # Forwards of ranks interleave, and each restores what it found.
    active = Setting(kind, ("_active_ddp_module",), lambda: kind._active_ddp_module, activate)  # noqa: SLF001 - likewise

    return [
        (kind, "__init__", recording_init(kind.__init__)),
        (kind, "_pre_forward", joining),
        (kind, "_get_ddp_logging_data", logged),
        (kind, "_register_builtin_comm_hook", registered),
        (kind, "_inside_ddp_forward", noting(kind._inside_ddp_forward, active.names, active)),  # noqa: SLF001 - likewise
    ]


def _keeping_works() -> tuple[Any, str, Any]:
    """Return the patch that keeps a reducer's Work alive: C++ holds only half of it.

    Without its Python half, `wait` is the base class's and never returns.
    """
    reducer: Any = import_module("torch._C._distributed_c10d").Reducer
    name = "_set_forward_pass_work_handle"
    original = getattr(reducer, name)
    kept: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @functools.wraps(original)
    def keep(self: Any, work: Any, *args: Any, **kwargs: Any) -> None:
        kept[self] = work
        original(self, work, *args, **kwargs)

    return reducer, name, keep


def _knowing_simulated(original: Callable[[str], bool]) -> Callable[[str], bool]:
    """Wrap the check of a backend: simulated ones, such as nccl2, pass in ranks."""

    @functools.wraps(original)
    def is_available(backend_name: str) -> bool:
        is_own = rank_program() is not None and is_simulated(str(backend_name))
        return is_own or original(backend_name)

    return is_available


def _of_cuda() -> Patches:
    """Return patches that turn devices on at a rank's first use, and off at the end."""
    from simrank.torch.devices import activation, first_use  # noqa: PLC0415 - it needs torch
    from simrank.torch.symmetric import memory  # noqa: PLC0415 - it needs torch

    found = [*memory.patches(), *first_use.patches()]
    off = Switch(lambda is_on: None if is_on else activation.disable())
    return [*found, (off, "is_on", True)]


def _of_multiprocessing() -> Patches:
    module: Any = import_module("torch.multiprocessing")
    spawning: Any = import_module("torch.multiprocessing.spawn")
    pairs = (("spawn", simulated_spawn), ("start_processes", simulated_start))
    found = [
        (owner, name, in_ranks(simulated, getattr(spawning, name)))
        for name, simulated in pairs
        for owner in (module, spawning)
    ]
    return found + children.of_module(module)


def _state_of(program: Program) -> LibraryState:
    from simrank.torch.rank_state.turns import TorchState  # noqa: PLC0415 - it needs torch

    return TorchState(program)


LIBRARY = RegisteredLibrary(patches, _state_of)
