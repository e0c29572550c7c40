"""Torch's settings of the process, found by name, each with its getter and setter.

simrank gives each rank its own (`simrank.torch.rank_state.settings`); a worker of a pool puts them
back after each case (`simrank.validate.reset`).
"""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import re
import sys
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator


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
    """Return the settings, with torch's functions as they are now."""
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
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]


def _flags_in_python() -> Iterator[Setting]:
    """Yield the flags in Python: each global that a public function `set_...` of torch sets."""
    for module_name, module in sys.modules.copy().items():
        is_public = module_name.partition(".")[0] == "torch" and not _PRIVATE.search(module_name)
        if is_public and isinstance(module, ModuleType):
            yield from globals_of(module, _SETTING_NAME)


def globals_of(module: ModuleType, named: re.Pattern[str]) -> Iterator[Setting]:
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
    found = set()
    if _STORE_GLOBAL in code.co_code[::2]:  # Few do, and to disassemble is slow.
        steps = dis.get_instructions(code)
        found = {str(step.argval) for step in steps if step.opcode == _STORE_GLOBAL}
    return found.union(*(_stored_globals(c) for c in code.co_consts if isinstance(c, CodeType)))
