"""Dynamo in ranks: what a process has once is each rank's own.

Ranks are threads that run in turns, so Dynamo's thread-local state is theirs already. What it
keeps for the process is swapped with their turns, and its cache of compiled code has a region for
each rank.
"""

from __future__ import annotations

import functools
import itertools
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._ordered_set import OrderedSet

from simrank.isolation.private_modules import private_modules
from simrank.ranks.current import in_ranks, rank_program, running_task
from simrank.torch.cuda.switch import Switch
from simrank.torch.inductor import forget_other_devices
from simrank.torch.rank_state.turns import EAGER, FRAMES, ProcessGlobals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.ranks import Program
    from simrank.torch.rank_state.turns import Place

    Patches = list[tuple[Any, str, Any]]

_NUM_REGIONS = 1 << 20  # Of a rank; `isolate_recompiles=True` takes one.
_first_regions = itertools.count(_NUM_REGIONS, _NUM_REGIONS)

_PENDING = "_CompilationCallbackHandler__pending_callbacks_counter"
_MODES = "torch_function_mode_stack_state_mgr"
PLACES: tuple[Place, ...] = (  # Of the state of a process.
    ("torch._dynamo.callback", f"callback_handler.{_PENDING}", 0),
    ("torch._dynamo.compiled_autograd", "active_disable_ctx", False),
    ("torch._dynamo.compiled_autograd", "compiled_autograd_enabled", False),
    ("torch._dynamo.compiled_autograd", "compiled_autograd_enabled_force_eager", False),
    ("torch._dynamo.compiled_autograd", "depth", 0),
    ("torch._dynamo.compiled_autograd", "in_compiled_autograd_region", False),
    ("torch._dynamo.distributed", "_COMPILE_PG", None),
    ("torch._dynamo.distributed", "_GUARD_PG", None),
    ("torch._dynamo.eval_frame", "_in_optimized_module", False),
    ("torch._dynamo.pgo", "_CODE_STATE", None),
    ("torch._dynamo.pgo", "_INIT_CODE_STATE", None),
    ("torch._inductor.distributed_autotune", "_AUTOTUNE_PG", None),
    ("torch._inductor.triton_bundler", "TritonBundler._entries", None),
    ("torch._inductor.triton_bundler", "TritonBundler._static_autotuners", None),
    ("torch._inductor.triton_bundler", "TritonBundler._winners", None),
    ("torch.compiler", "_is_compiling_flag", False),
)
# What a compilation sets for as long as it lasts. A rank may wait in the midst of one: where
# configurations are timed. Found by comparing all of torch then (tests/torch/test_inductor.py).
MID_COMPILATION: tuple[Place, ...] = (
    *(("torch._decomp.decompositions_for_rng", f"PhiloxStateTracker.{name}", None)
      for name in ("fwd_state", "bwd_state", "running_state")),
    ("torch._dynamo.convert_frame", "initial_global_state", None),
    ("torch._functorch._aot_autograd.logging_utils", "graph_being_compiled", []),
    ("torch._inductor.debug", "_inductor_kernel_provenance_debug_handle", 0),
    ("torch._inductor.debug", "_pre_grad_graph_id", None),
    *(("torch._inductor.debug", name, {})
      for name in ("_inductor_post_to_pre_grad_nodes", "_inductor_pre_grad_node_stack_trace",
                   "_inductor_triton_kernel_to_post_grad_node_info", "_inductor_kernel_extern_info",
                   "_inductor_kernel_stack_trace")),
    ("torch._inductor.ir", "IRNode._current_origins", OrderedSet()),
    ("torch.fx._symbolic_trace", "CURRENT_PATCHER", None),
    ("torch.fx._lazy_graph_module", "_use_lazy_graph_module_flag", False),
    ("torch.fx.graph_module", "_forward_from_src", None),
    ("torch.fx.traceback", "current_meta", {}),
    *(("torch.fx.traceback", name, None)
      for name in ("current_replay_node", "should_preserve_node_meta",
                   "_should_preserve_node_meta")),
    ("torch.utils._debug_mode._utils", "_IN_INDUCTOR_BENCHMARK", False),
    ("torch.utils._python_dispatch", "_is_in_torch_dispatch_mode", False),
)  # fmt: skip


class Frames:
    """Dynamo's state of a process: the rank's own, in place during its turns.

    Attributes:
        first_region: The rank's first region of compiled code.
    """

    def __init__(self) -> None:
        self.first_region = next(_first_regions)
        self._bindings: Any = import_module("torch._C._dynamo.eval_frame")
        self._utils: Any = import_module("torch._dynamo.utils")
        frames: Any = import_module("torch._dynamo.eval_frame")
        self._in_c = (self.first_region, False, -1, False, None)
        stance = type(frames._stance)()  # noqa: SLF001 - torch's name
        metrics = self._utils._compilation_metrics  # noqa: SLF001 - likewise
        new_metrics = type(metrics)(maxlen=metrics.maxlen)
        places = (
            *PLACES,
            ("torch._dynamo.eval_frame", "_stance", stance),
            ("torch._dynamo.utils", "_compilation_metrics", new_metrics),
            ("torch._dynamo.variables.torch_function", f"{_MODES}.stack", []),
        )
        self._globals = ProcessGlobals(places, is_new=True)
        self._mid_compilation = ProcessGlobals(MID_COMPILATION)
        self._counters: dict[str, Any] = {}

    def enter(self) -> None:
        """Put the rank's values in place."""
        self._globals.enter()
        self._mid_compilation.enter()
        self._swap()

    def leave(self) -> None:
        """Put the common values back."""
        self._mid_compilation.leave()
        self._globals.leave()
        self._swap()

    def _swap(self) -> None:
        bindings, (region, skips, count, nested, hook) = self._bindings, self._in_c
        self._in_c = (
            _swapped(bindings, "set_eval_frame_isolate_recompiles_id", region),
            _swapped(bindings, "set_skip_guard_eval_unsafe", skips),
            _swapped(bindings, "set_fullgraph_compiled_frame_count", count),
            _swapped(bindings, "set_fullgraph_error_on_nested_compile", nested),
            _swapped(bindings, "set_guard_complete_hook", hook),
        )
        counters = self._utils.counters
        common = dict(counters)
        counters.clear()
        counters.update(self._counters)
        self._counters = common

    def take_new_region(self) -> None:
        """Forget the rank's compiled code: no call finds it any more."""
        self.first_region = next(_first_regions)
        _swapped(self._bindings, "set_eval_frame_isolate_recompiles_id", self.first_region)


def _swapped(owner: Any, name: str, value: Any) -> Any:
    """Set a value of torch's C code, and return the one before; torch 2.12 lacks some."""
    return getattr(owner, name, lambda same: same)(value)


def frames_of(program: Program) -> Frames:
    """Return a rank's frames; they are in place from the first call on."""
    frames: Frames | None = program.local.get(FRAMES)
    if frames is None:
        frames = program.local[FRAMES] = Frames()
        frames.enter()
        _fold_replaced()
        if program.local.get(EAGER):
            torch.compiler.set_stance("force_eager")
        if torch.cuda.is_available():
            forget_other_devices()
    return frames


_folded: list[tuple[Any, Any]] = []  # Tables, and their keys that go with the Context.


def _fold_replaced() -> None:
    """Add simrank's replacements to Dynamo's tables of functions whose results it folds."""
    variables: Any = import_module("torch._dynamo.variables.torch")
    for name in ("constant_fold_functions", "constant_fold_functions_need_guards"):
        table = getattr(variables, name)
        for function in list(table):
            home, own = getattr(function, "__module__", ""), getattr(function, "__name__", "")
            for module in (home, "torch.distributed"):
                replaced = getattr(sys.modules.get(module), own, None)
                if replaced is not None and getattr(replaced, "__wrapped__", None) is function:
                    _folded.append((table, replaced))
                    table[replaced] = table[function]


def _forget_regions(is_on: bool) -> None:
    """Drop the compiled code of ranks as their Context ends: no region is used again."""
    while _folded:
        table, key = _folded.pop()
        table.pop(key, None)
    conversion = sys.modules.get("torch._dynamo.convert_frame")
    if is_on or conversion is None:
        return
    frames: Any = import_module("torch._C._dynamo.eval_frame")
    names = vars(conversion)
    for reference in (*names["input_codes"].seen, *names["output_codes"].seen):
        if (code := reference()) is not None:
            frames.reset_code(code)


def of_frames(module: Any) -> Patches:
    """Return the patches of `torch._dynamo.eval_frame`: a cache of compiled code for each rank."""
    name = "set_eval_frame_isolate_recompiles_id"
    original = getattr(module, name, lambda region: region)

    @functools.wraps(original)
    def set_region(region: int) -> int:
        program = rank_program()
        if program is not None and region + 1 < _NUM_REGIONS:
            region += 1 + frames_of(program).first_region
        return int(original(region))

    guards: Any = import_module("torch._C._dynamo.guards")
    bindings: Any = import_module("torch._C._dynamo.eval_frame")
    return [
        *([(module, name, set_region)] if hasattr(module, name) else _with_backends(module)),
        *_with_frames(module, "_set_stance"),
        *_with_frames(bindings, "set_guard_complete_hook"),
        (Switch(_forget_regions), "is_on", True),
        (guards, "_empty_strided_cuda", in_ranks(_empty_strided, guards._empty_strided_cuda)),  # noqa: SLF001 - torch's name
    ]


def _with_backends(module: Any) -> Patches:
    """Return the patches of torch before 2.13, which has no regions: backends stand for them."""
    original: Any = module.set_eval_frame

    def set_callback(callback: Any) -> Any:
        program = rank_program()
        if program is not None and callable(callback):
            region = frames_of(program).first_region
            # As long as torch has its own, it uses this one, to which it takes no reference either.
            known = getattr(callback, "__dict__", {}).setdefault("_simrank_callbacks", {})
            if region not in known:
                known[region] = _Callback(callback, region)
            callback = known[region]
        before = original(callback)
        return before.callback if type(before) is _Callback else before

    return [
        (module, name, set_callback)
        for name in ("set_eval_frame", "_maybe_set_eval_frame")
        if getattr(module, name) is original
    ]


class _Callback:
    """Compiler of a rank's frames; its backend, which torch compares, is the rank's own.

    Attributes:
        callback: What compiles frames in a process.
    """

    def __init__(self, callback: Any, region: int) -> None:
        self.callback = callback
        while hasattr(callback, "_torchdynamo_orig_backend"):
            callback = callback._torchdynamo_orig_backend  # noqa: SLF001 - torch's name
        # No property: torch takes no reference to it, and would compile Python that returns it.
        self._torchdynamo_orig_backend = _Backend(callback, region)

    def __call__(self, frame: Any, entry: Any, *state: Any) -> Any:
        """Compile a frame; `entry` is the first one of all that its code has."""
        own = None
        for each in reversed([*_entries(entry)]):
            if each.backend == self._torchdynamo_orig_backend:
                own = _Entry(each, own)
        return self.callback(frame, own, *state)


class _Backend(NamedTuple):
    """A backend in a region of compiled code."""

    backend: Any
    region: int


class _Entry:
    """An entry of compiled code among those of one rank."""

    def __init__(self, entry: Any, following: _Entry | None) -> None:
        self._entry, self.next = entry, following

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)


def _entries(entry: Any) -> Iterator[Any]:
    while entry is not None:
        yield entry
        entry = entry.next


def _with_frames(owner: Any, name: str) -> Patches:
    """Return the patch of a function that sets what is a rank's own: the rank has its frames."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        program = rank_program()
        if program is not None:
            frames_of(program)
        return original(*args, **kwargs)

    return [(owner, name, call)]


def of_decorators(module: Any) -> Patches:
    """Return the patches of `torch._dynamo.decorators`, which has bound a name of `eval_frame`."""
    return _with_frames(module, "_set_stance")


def of_conversion(module: Any) -> Patches:
    """Return the patches of `torch._dynamo.convert_frame`."""
    _pass_over_own_frames(import_module("torch._dynamo.trace_rules"))
    lock = _Compilation(module.compile_lock)
    return [(module, "compile_lock", lock), *_with_lengths(), *_with_own_modules()]


@functools.cache  # Each call would make the expression longer that is matched with every file.
def _pass_over_own_frames(rules: Any) -> None:
    """Add simrank's folder to the files that Dynamo passes over."""
    rules.add("simrank")


def _with_lengths() -> Patches:
    """Return the patch of torch before 2.13, which asks dicts of hooks for a length: ranks' too."""
    kind: Any = import_module("torch._dynamo.variables.user_defined").UserDefinedDictVariable

    def length(self: Any) -> int:
        return int(self._base_vt.len())

    return [] if hasattr(kind, "len") else [(kind, "len", length)]


def _with_own_modules() -> Patches:
    """Return the patches of imports in Dynamo, which keeps a process's modules by their names.

    A guard reads a module from the globals of the compiled frame. Those of torch's own frames are
    all ranks' globals, so a module of which each rank has its own lies there once per rank.
    """
    conversion: Any = import_module("torch._dynamo.symbolic_convert")
    import_kept = conversion._import_module  # noqa: SLF001 - torch's name
    kind = conversion.InstructionTranslatorBase
    import_shared = kind.import_source

    def own(name: str) -> Any:
        program = rank_program()
        modules = None if program is None else private_modules(program)
        return None if modules is None else modules.own(name)

    @functools.wraps(import_kept)
    def import_(name: str) -> Any:
        return own(name) or import_kept(name)

    @functools.wraps(import_shared)
    def import_source(self: Any, module_name: str) -> Any:
        module, program = own(module_name), rank_program()
        if module is None or program is None or self.package is not None:
            return import_shared(self, module_name)
        alias = f"__import_{module_name.replace('.', '_dot_')}_of_rank_{program.rank}"
        self.output.import_sources[alias] = module_name
        self.output.global_scope[alias] = module
        self.output.update_co_names(alias)
        return conversion.GlobalSource(alias)

    return [(conversion, "_import_module", import_), (kind, "import_source", import_source)]


class _Compilation:
    """Dynamo's lock of compilations: in a rank no lock, but a time in which its clock stands.

    Simulated time is that of a program whose compiled code is cached. Ranks are threads that run
    in turns, so a lock could only make one wait for another that waits for it.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        task = running_task()
        if task is None or task.rank is None:
            self._lock.acquire()
        else:
            task.num_quiet += 1

    def __exit__(self, *_: object) -> None:
        task = running_task()
        if task is None or task.rank is None:
            self._lock.release()
        else:
            task.num_quiet -= 1


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def of_package(module: Any) -> Patches:
    """Return the patches of `torch._dynamo`: a rank resets what is its own."""
    original = module.reset

    @functools.wraps(original)
    def reset() -> None:
        program = rank_program()
        if program is None:
            original()
            return
        frames_of(program).take_new_region()
        module.reset_code_state()
        module.reset_frame_count()
        module.callback_handler.clear()

    return [(module, "reset", reset)]
