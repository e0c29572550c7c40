"""Settings of torch per process, swapped at each rank's turns.

A rank's values are put in place as its turn begins and taken back as it ends. Until a rank changes
a setting, turns cost nothing. `Switch` is a patch that turns one of torch's switches on and off.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from simrank.ranks.current import rank_program
from simrank.torch import optimizer_steps

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """

    owner: Any
    names: tuple[str, ...]
    get: Callable[[], Any]
    put: Callable[[Any], None]
    fresh: Callable[[], Any] | None = None


def _print_options() -> dict[str, Any]:
    return dict(vars(torch._tensor_str.PRINT_OPTS))


def _put_print_options(options: dict[str, Any]) -> None:
    vars(torch._tensor_str.PRINT_OPTS).update(options)


def _deterministic() -> tuple[bool, bool]:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warn_only


def _put_deterministic(state: tuple[bool, bool]) -> None:
    torch._C._set_deterministic_algorithms(state[0], warn_only=state[1])


# Backends and operators whose precision of float32 programs set, the general ones first.
_PRECISIONS = (
    ("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), ("cuda", "matmul"), ("cuda", "conv"),
    ("cuda", "rnn"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
_CUDA_MATMUL = _PRECISIONS.index(("cuda", "matmul"))


class _Float32Precision(NamedTuple):
    """The precision of products and convolutions in float32.

    Attributes:
        matmul: That of `torch.set_float32_matmul_precision`; None where `fp32_precision` says
            otherwise, since torch then refuses to return it.
        of: By `_PRECISIONS`.
    """

    matmul: str | None
    of: tuple[str, ...]


def _float32_precision() -> _Float32Precision:
    try:
        matmul = torch.get_float32_matmul_precision()
    except RuntimeError:
        matmul = None
    get = torch._C._get_fp32_precision_getter
    return _Float32Precision(matmul, tuple(get(*each) for each in _PRECISIONS))


def _put_float32_precision() -> Callable[[_Float32Precision], None]:
    """Return a function that sets it, with torch's original functions."""
    put_matmul, put = torch._C._set_float32_matmul_precision, torch._C._set_fp32_precision_setter

    def put_all(state: _Float32Precision) -> None:
        is_tf32 = state.of[_CUDA_MATMUL] == "tf32"
        put_matmul(state.matmul or ("highest" if is_tf32 else "high"))
        for each, precision in zip(_PRECISIONS, state.of, strict=True):
            if torch._C._get_fp32_precision_getter(*each) != precision:
                put(*each, precision)

    return put_all


def settings() -> list[Setting]:
    """Return the settings that each rank owns, with torch's original functions."""
    anomaly: Any = torch.autograd
    return [
        Setting(
            torch, ("set_default_dtype", "set_default_tensor_type"),
            torch.get_default_dtype, torch._C._set_default_dtype,
        ),
        Setting(
            torch, ("use_deterministic_algorithms", "set_deterministic_debug_mode"),
            _deterministic, _put_deterministic,
        ),
        Setting(
            torch._C,
            ("_set_float32_matmul_precision", "_set_cublas_allow_tf32", "_set_cudnn_allow_tf32",
             "_set_fp32_precision_setter"),
            _float32_precision, _put_float32_precision(),
        ),
        Setting(
            torch, ("set_warn_always",), torch.is_warn_always_enabled, torch._C._set_warnAlways
        ),
        Setting(torch, ("set_printoptions",), _print_options, _put_print_options),
        Setting(
            anomaly.anomaly_mode, ("set_detect_anomaly", "detect_anomaly"),
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda state: torch.set_anomaly_enabled(*state),
        ),
        Setting(
            torch.distributed, ("set_debug_level", "set_debug_level_from_env"),
            torch.distributed.get_debug_level, torch.distributed.set_debug_level,
        ),
    ]  # fmt: skip


class RankSettings:
    """The settings of one rank, and the common values that they replace."""

    def __init__(self) -> None:
        self._own: dict[int, tuple[Setting, Any]] = {}
        self._others: dict[int, Any] = {}

    def touch(self, number: int, setting: Setting) -> None:
        """Record that the rank is about to change a setting."""
        if number not in self._own:
            self._others[number] = setting.get()
            self._own[number] = setting, None
            if setting.fresh is not None:
                setting.put(setting.fresh())

    def enter(self) -> None:
        """Put the rank's settings in place."""
        for number, (setting, value) in self._own.items():
            self._others[number] = setting.get()
            setting.put(value)

    def leave(self) -> None:
        """Restore the common settings."""
        for number, (setting, _) in self._own.items():
            self._own[number] = setting, setting.get()
            setting.put(self._others[number])


def settings_of(program: Program) -> RankSettings:
    """Return the settings of a rank, made at first use."""
    own: RankSettings | None = program.local.get(_KEY)
    if own is None:
        own = program.local[_KEY] = RankSettings()
    return own


def patches() -> Patches:
    """Return patches of the functions that change settings."""
    replaced: Patches = []
    for number, setting in enumerate(settings()):
        for name in setting.names:
            for owner in _owners(setting.owner, name):
                original = getattr(owner, name)
                replaced.append((owner, name, noting(original, number, setting)))
                if name == "_set_cudnn_allow_tf32":  # torch.backends.cudnn keeps the function.
                    attribute = vars(type(torch.backends.cudnn))["allow_tf32"]
                    replaced.append((attribute, "setter", replaced[-1][2]))
    return replaced


def _owners(owner: Any, name: str) -> list[Any]:
    """Return the modules that export a function."""
    others = (torch, torch._C, torch.autograd, torch.autograd.anomaly_mode, torch.distributed)
    original = getattr(owner, name)
    return [place for place in others if getattr(place, name, None) is original]


def noting(original: Any, number: int, setting: Setting) -> Any:
    """Wrap a function or context manager: record that the rank changes a setting."""
    if isinstance(original, type):  # A context manager: its construction says so.

        class Noting(original):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                _note(number, setting)
                super().__init__(*args, **kwargs)

        functools.update_wrapper(Noting, original, updated=())
        return Noting

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        _note(number, setting)
        return original(*args, **kwargs)

    return call


def _note(number: int, setting: Setting) -> None:
    program = rank_program()
    if program is not None:
        settings_of(program).touch(number, setting)


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


# ---- Switches of torch that the first Context turns on and the last one turns off ----


class Switch:
    """A switch among patches, as `(Switch(turn), "is_on", True)`.

    Args:
        turn: Called with whether it is on from now on.
    """

    def __init__(self, turn: Callable[[bool], object]) -> None:
        self._turn = turn
        self._is_on = False

    @property
    def is_on(self) -> bool:
        """Whether the switch is on; setting it calls `turn`."""
        return self._is_on

    @is_on.setter
    def is_on(self, is_on: bool) -> None:
        self._turn(is_on)
        self._is_on = is_on
