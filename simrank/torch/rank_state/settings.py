"""Settings of torch per process, swapped at each rank's turns.

A rank's values are put in place as its turn begins and taken back as it ends. Turns cost nothing
until a rank changes a setting, and once it has restored the common value. Flags are not listed, but
found in torch by name.
"""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import os
import re
import sys
from contextlib import contextmanager
from importlib import import_module
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from simrank.ranks.current import rank_program
from simrank.torch import optimizer_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from simrank.ranks import Program

    Patches = list[tuple[Any, str, Any]]

_KEY = "torch's settings"


class Setting(NamedTuple):
    """A setting of the process.

    Attributes:
        owner: Where the functions that programs call are.
        names: What programs call to set it.
        get: Returns it.
        put: Sets it to what `get` returned.
        fresh: Returns a rank's first value; None: it is the common value.
        is_same: Whether two values are the same: the rank's is then swapped no longer.
        key: The setting's key among those of a rank; None: `names`.
    """

    owner: Any
    names: tuple[str, ...]
    get: Callable[[], Any]
    put: Callable[[Any], None]
    fresh: Callable[[], Any] | None = None
    is_same: Callable[[Any, Any], bool] = operator.is_
    key: Hashable = None


def _print_options() -> dict[str, Any]:
    return dict(vars(torch._tensor_str.PRINT_OPTS))


def _put_print_options(options: dict[str, Any]) -> None:
    vars(torch._tensor_str.PRINT_OPTS).update(options)


def _deterministic() -> tuple[bool, bool]:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warn_only


# Backends and operators whose precision of float32 programs set, the general ones first.
_PRECISIONS = (
    ("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), ("cuda", "matmul"), ("cuda", "conv"),
    ("cuda", "rnn"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
# Where torch looks if there is none; those of cuDNN begin with one of their own.
_PARENTS = (None, 0, 0, 1, None, None, 2, 2, 2)
_CUDA_MATMUL, _CUDA_CONV = map(_PRECISIONS.index, (("cuda", "matmul"), ("cuda", "conv")))


class _Float32Precision(NamedTuple):
    """The precision of products and convolutions in float32.

    torch keeps the older settings beside those by backend, and refuses to return an older one that
    contradicts them: it is then the opposite of theirs.

    Attributes:
        matmul: That of `torch.set_float32_matmul_precision`.
        cudnn: `torch.backends.cudnn.allow_tf32`.
        of: By `_PRECISIONS`.
    """

    matmul: str
    cudnn: bool
    of: tuple[str, ...]


def _float32_precision() -> _Float32Precision:
    get = torch._C._get_fp32_precision_getter
    of = tuple(get(*each) for each in _PRECISIONS)
    matmul = _unless_refused(torch.get_float32_matmul_precision)
    if matmul is None:
        is_tf32 = _unless_refused(torch._C._get_cublas_allow_tf32)
        matmul = (
            "high" if (of[_CUDA_MATMUL] != "tf32" if is_tf32 is None else is_tf32) else "highest"
        )
    cudnn = _unless_refused(torch._C._get_cudnn_allow_tf32)
    return _Float32Precision(matmul, of[_CUDA_CONV] != "tf32" if cudnn is None else cudnn, of)


def _unless_refused(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except RuntimeError:
        return None


def _put_float32_precision() -> Callable[[_Float32Precision], None]:
    """Return a function that sets it, with torch's original functions."""
    put_matmul, put = torch._C._set_float32_matmul_precision, torch._C._set_fp32_precision_setter
    put_cudnn = torch._C._set_cudnn_allow_tf32

    def put_all(state: _Float32Precision) -> None:
        put_matmul(state.matmul)
        put_cudnn(state.cudnn)
        for each, parent, precision in zip(_PRECISIONS, _PARENTS, state.of, strict=True):
            is_inherited = parent is not None and state.of[parent] == precision
            put(*each, "none" if is_inherited else precision)

    return put_all


def settings() -> list[Setting]:
    """Return the settings that each rank owns, with torch's original functions."""
    bindings, same = torch._C, operator.eq
    deterministic, anomaly = bindings._set_deterministic_algorithms, torch.set_anomaly_enabled
    composed = [
        Setting(
            bindings, ("_set_default_dtype", "_set_default_tensor_type"),
            torch.get_default_dtype, bindings._set_default_dtype,
        ),
        Setting(
            bindings, ("_set_deterministic_algorithms",), _deterministic,
            lambda state: deterministic(state[0], warn_only=state[1]), is_same=same,
        ),
        Setting(
            bindings,
            ("_set_float32_matmul_precision", "_set_cublas_allow_tf32", "_set_cudnn_allow_tf32",
             "_set_onednn_allow_tf32", "_set_fp32_precision_setter"),
            _float32_precision, _put_float32_precision(), is_same=same,
        ),
        Setting(torch, ("set_printoptions",), _print_options, _put_print_options),
        Setting(
            torch, ("set_anomaly_enabled",),
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda state: anomaly(*state), is_same=same,
        ),
        Setting(
            torch.distributed, ("set_debug_level",), torch.distributed.get_debug_level,
            torch.distributed.set_debug_level, is_same=same,
        ),
    ]  # fmt: skip
    known = {name for setting in composed for name in setting.names}
    return [*composed, *_flags(known), *_flags_in_python()]


# ---- flags that torch names ----

_SETTER = re.compile(r"(_|_jit_|_debug_|_cuda_|)set_((sdp_use_)?(\w+))")
# Kept per native thread, or changes of one object that is passed.
_NO_FLAGS = re.compile(
    r"autocast|tracing_state|torch_function|thread_name|tensor_metadata|value_trace|dispatch|lift_"
    r"|interop|grad_enabled|emit_hooks|sync_debug"
)


def _flags(known: set[str]) -> Iterator[Setting]:
    """Yield the flags of C++: each setter in `torch._C` that has a getter of the same name."""
    bindings = torch._C
    for name in dir(bindings):
        match = _SETTER.fullmatch(name)
        if match is None or name in known or _NO_FLAGS.search(name):
            continue
        prefix, flag, of_attention, kind = match.groups()
        getters = [f"{prefix}get_{flag}", f"{prefix}{flag}"]
        if of_attention:
            getters.append(f"{prefix}get_{kind}_sdp_enabled")
        get = next((found for n in getters if (found := getattr(bindings, n, None))), None)
        put = getattr(bindings, name)
        if get is not None and callable(put):
            yield Setting(bindings, (name,), get, _spread(put), is_same=operator.eq)


def _spread(put: Callable[..., None]) -> Callable[[Any], None]:
    """Return a setter that takes one value: some getters return a tuple of all arguments."""
    return lambda value: put(*value) if isinstance(value, tuple) else put(value)


_SETTING_NAME = re.compile(r"(set|enable|disable|activate|restore|allow)_")
_PRIVATE = re.compile(r"\._(?!_)")  # Not `torch.__future__`.


def _flags_in_python() -> Iterator[Setting]:
    """Yield the flags in Python: each global that a public function `set_...` of torch sets."""
    for module_name, module in sys.modules.copy().items():
        is_public = module_name.partition(".")[0] == "torch" and not _PRIVATE.search(module_name)
        if is_public and isinstance(module, ModuleType):
            yield from _globals_of(module, _SETTING_NAME)


def of_globals(module: ModuleType) -> Patches:
    """Return patches that give each rank the globals that functions of a module set."""
    found = _globals_of(module, re.compile(""))
    # A function may wait between its call and the change.
    return _noting_all(setting._replace(is_same=lambda *_: False) for setting in found)


def _globals_of(module: ModuleType, named: re.Pattern[str]) -> Iterator[Setting]:
    """Yield the globals that functions of some names set, and methods of a module's classes."""
    classes = [v for v in vars(module).values() if type(v) is type]
    for owner in (module, *(kind for kind in classes if kind.__module__ == module.__name__)):
        for name, function in list(vars(owner).items()):
            if named.match(name) and isinstance(function, FunctionType):
                inner = inspect.unwrap(function)
                if inner.__globals__ is vars(module):
                    for each in sorted(_stored_globals(inner.__code__)):
                        get = functools.partial(vars(module).get, each)
                        put = functools.partial(vars(module).__setitem__, each)
                        yield Setting(owner, (name,), get, put, key=(module.__name__, each))


def _stored_globals(code: CodeType) -> set[str]:
    found = {
        str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL"
    }
    return found.union(*(_stored_globals(c) for c in code.co_consts if isinstance(c, CodeType)))


class RankSettings:
    """The settings of one rank, and the common values that they replace."""

    def __init__(self) -> None:
        self._own: dict[Hashable, tuple[Setting, Any]] = {}
        self._others: dict[Hashable, Any] = {}

    def touch(self, key: Hashable, setting: Setting) -> None:
        """Record that the rank is about to change a setting."""
        if key not in self._own:
            self._others[key] = setting.get()
            self._own[key] = setting, None
            if setting.fresh is not None:
                setting.put(setting.fresh())

    def enter(self) -> None:
        """Put the rank's settings in place."""
        for key, (setting, value) in self._own.items():
            self._others[key] = setting.get()
            setting.put(value)

    def leave(self) -> None:
        """Restore the common settings."""
        for key, (setting, _) in [*self._own.items()]:
            value, common = setting.get(), self._others[key]
            if setting.fresh is None and setting.is_same(value, common):
                del self._own[key]
            else:
                self._own[key] = setting, value
                setting.put(common)


def settings_of(program: Program) -> RankSettings:
    """Return the settings of a rank, made at first use."""
    own: RankSettings | None = program.local.get(_KEY)
    if own is None:
        own = program.local[_KEY] = RankSettings()
    return own


def patches() -> Patches:
    """Return patches of the functions that change settings."""
    wrapped = {id(getattr(owner, name)): new for owner, name, new in _noting_all(settings())}
    wrapped |= _interop_threads() | _debug_level_from_env()
    return [
        (owner, name, wrapped[id(value)])
        for owner, name, value in _bound()
        if type(value) in (FunctionType, BuiltinFunctionType) and id(value) in wrapped
    ]


def _noting_all(found: Iterable[Setting]) -> Patches:
    """Return the patches of functions that change settings, each of which may change several."""
    patched: dict[tuple[Any, str], Any] = {}
    for setting in found:
        for name in setting.names:
            place = setting.owner, name
            function = patched.get(place) or getattr(*place)
            patched[place] = noting(function, setting.key or setting.names, setting)
    return [(*place, function) for place, function in patched.items()]


def _interop_threads() -> dict[int, Any]:
    """Return patches of the number that a process may set once: a rank may, too, once."""
    get, put, key = torch.get_num_interop_threads, torch.set_num_interop_threads, "interop threads"

    @functools.wraps(get)
    def get_own() -> int:
        program = rank_program()
        number: int = get() if program is None else program.local.get(key, get())
        return number

    @functools.wraps(put)
    def put_own(number: int) -> None:
        program = rank_program()
        if program is None:
            put(number)
        elif key in program.local:
            raise RuntimeError(
                "Error: cannot set number of interop threads after parallel work has started or "
                "set_num_interop_threads called"
            )
        else:
            program.local[key] = number

    return {id(get): get_own, id(put): put_own}


def _debug_level_from_env() -> dict[int, Any]:
    """Return a patch that reads the rank's environment, where C++ reads the process's."""
    original, name = torch.distributed.set_debug_level_from_env, "TORCH_DISTRIBUTED_DEBUG"

    @functools.wraps(original)
    def from_env() -> None:
        level = getattr(torch.distributed.DebugLevel, os.environ.get(name, "OFF").upper(), None)
        if rank_program() is None:
            original()
        elif level is None:
            raise ValueError(f"The value of {name} must be OFF, INFO, or DETAIL.")
        else:
            torch.distributed.set_debug_level(level)

    return {id(original): from_env}


def _bound() -> Iterator[tuple[Any, str, Any]]:
    """Yield the functions of torch's modules, and those that properties of modules keep."""
    for module_name, module in sys.modules.copy().items():
        if module_name.partition(".")[0] != "torch" or not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            yield module, name, value
        for attribute in list(vars(type(module)).values()):
            if hasattr(attribute, "setter"):  # Of modules of `torch.backends`.
                yield attribute, "setter", attribute.setter


def noting(original: Any, key: Hashable, setting: Setting) -> Any:
    """Wrap a function or context manager: record that the rank changes a setting."""
    if isinstance(original, type):  # A context manager: its construction says so.

        class Noting(original):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                _note(key, setting)
                super().__init__(*args, **kwargs)

        functools.update_wrapper(Noting, original, updated=())
        return Noting

    if inspect.isgeneratorfunction(inspect.unwrap(original)):

        @contextmanager
        @functools.wraps(original)
        def block(*args: Any, **kwargs: Any) -> Iterator[Any]:
            _note(key, setting)
            with original(*args, **kwargs) as value:
                yield value

        return block

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        _note(key, setting)
        return original(*args, **kwargs)

    return call


def _note(key: Hashable, setting: Setting) -> None:
    program = rank_program()
    if program is not None:
        settings_of(program).touch(key, setting)


# ---- hooks of all modules and optimizers ----

_HOOKS = -1  # A number that no entry of `settings` has.


class _NotingDict(dict[Any, Any]):
    """A dict of hooks that records the adding rank."""

    def __init__(self, hooks: dict[Any, Any], note: Callable[[], None]) -> None:
        super().__init__(hooks)
        self._note = note

    def __setitem__(self, key: Any, hook: Any) -> None:
        self._note()
        super().__setitem__(key, hook)


def hook_patches() -> Patches:
    """Return patches that limit hooks of all modules to the rank that registers them."""
    modules: Any = import_module("torch.nn.modules.module")
    optimizers: Any = import_module("torch.optim.optimizer")
    found = [
        (owner, name)
        for owner in (modules, optimizers)
        for name, value in vars(owner).items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]

    def get() -> tuple[Any, ...]:
        hooks = [dict(getattr(owner, name)) for owner, name in found]
        return modules._global_is_full_backward_hook, *hooks

    def put(state: tuple[Any, ...]) -> None:
        modules._global_is_full_backward_hook, *hooks = state
        for (owner, name), content in zip(found, hooks, strict=True):
            getattr(owner, name).clear()
            getattr(owner, name).update(content)

    note = functools.partial(_note, _HOOKS, Setting(modules, (), get, put))
    replaced: Patches = []
    for owner, name in found:
        hooks = dict(getattr(owner, name))
        if name == "_global_optimizer_pre_hooks":
            hooks[optimizer_steps.HOOK] = optimizer_steps.before_step
        if name == "_global_optimizer_post_hooks":
            hooks[optimizer_steps.HOOK] = optimizer_steps.after_step
        replaced.append((owner, name, _NotingDict(hooks, note)))
    return replaced
