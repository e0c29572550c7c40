"""Name in place of Dynamo, which is imported once a program compiles.

Optimizers and DistributedDataParallel import `torch._dynamo` to keep it from tracing them, which
takes as long as the import of torch itself. While nothing else has imported it nothing is traced,
and its settings are a module that can be executed alone.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from simrank.isolation.deferred_module import DeferredModule
from simrank.torch.cuda.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "torch._dynamo"
_MODES = {True: "ddp_optimizer", False: "no_optimization"}  # Those of DDP under Dynamo.


def patch() -> tuple[Any, str, Any]:
    """Return the patch that puts a name in Dynamo's place, unless it is there."""
    return Switch(_turn), "is_on", True


def _turn(is_on: bool) -> None:
    if is_on and _NAME not in sys.modules:
        _module().put()
        _config()  # Fake tensors, which FSDP makes, import it by its name, and so Dynamo.
    elif not is_on and not _is_there() and _NAME in sys.modules:
        _module().remove()


@functools.cache  # Programs may keep it.
def _module() -> DeferredModule:
    answers = {
        "disable": _disable,
        "graph_break": _answering("decorators.graph_break", lambda *_, **__: None),
        "trace_rules": _Part(
            "trace_rules",
            clear_lru_cache=_answering("trace_rules.clear_lru_cache", lambda: None),
        ),
        "utils": _Part(
            "utils", get_optimize_ddp_mode=_answering("utils.get_optimize_ddp_mode", ddp_mode)
        ),
    }
    return DeferredModule(_NAME, answers, {"config": _config})


def _is_there() -> bool:
    """Return whether Dynamo has been imported."""
    return type(sys.modules.get(_NAME, None)) not in (type(None), DeferredModule)


def _of_dynamo(path: str) -> Any:
    """Return an attribute of one of Dynamo's modules, which imports it."""
    part, _, name = path.partition(".")
    return getattr(import_module(f"{_NAME}.{part}"), name)


def _answering(path: str, answer: Callable[..., object]) -> Callable[..., object]:
    """Return a function of Dynamo that is answered while that is not there."""

    def call(*args: Any, **kwargs: Any) -> object:
        if not _is_there():
            return answer(*args, **kwargs)
        found: object = _of_dynamo(path)(*args, **kwargs)
        return found

    call.__name__ = call.__qualname__ = path.rpartition(".")[2]
    return call


class _Part:
    """One of Dynamo's modules: some of its functions, and all others once it is imported.

    Args:
        name: Of the module.
        answers: Those functions.
    """

    def __init__(self, name: str, **answers: Callable[..., object]) -> None:
        vars(self).update(answers, __name__=f"{_NAME}.{name}")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module."""
        return getattr(import_module(vars(self)["__name__"]), name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute of the module."""
        setattr(import_module(vars(self)["__name__"]), name, value)


def _disable(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Return a function that Dynamo does not trace, also if it is imported later."""
    if type(fn) is not FunctionType or _is_there():
        return _of_dynamo("decorators.disable")(fn, *args, **kwargs)
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(fn)
    def call(*given: Any, **named: Any) -> Any:
        if not disabled:
            if not _is_there():
                return fn(*given, **named)
            disabled.append(_of_dynamo("decorators.disable")(fn, *args, **kwargs))
        return disabled[0](*given, **named)

    return call


def _config() -> Any:
    """Return Dynamo's settings, which are imported without it."""
    name = f"{_NAME}.config"
    if name not in sys.modules:
        package = find_spec(_NAME)
        assert package is not None, "torch has it"
        assert package.origin is not None, "it is a file"
        spec = spec_from_file_location(name, Path(package.origin).with_name("config.py"))
        assert spec is not None, "it is a file, too"
        assert spec.loader is not None, "likewise"
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def ddp_mode() -> object:
    """Return the name of the way in which Dynamo would trace DDP."""
    value = _config().optimize_ddp
    known = _MODES.get(value) if isinstance(value, bool) else None
    return known or _of_dynamo("utils.get_optimize_ddp_mode")()
