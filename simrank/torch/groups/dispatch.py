"""Calls as operators of c10d, for dispatch modes and tensor subclasses.

torch's C++ sends every call of a process group through its dispatcher, where `CommDebugMode`, fake
tensors and subclasses see it. That costs more than the rest of a call, so it is done here only
under modes and for subclasses. Barriers are never dispatched.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import library as operators

from simrank.distributed.backends import NCCL
from simrank.errors import UnsupportedError
from simrank.torch import profiler
from simrank.torch.cuda.streams import captured_graph, capturing, frozen_all
from simrank.torch.devices import activation
from simrank.torch.groups.identity import check_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Method = Any  # Of a group: takes tensors and options, and returns a Work.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_SPARSE = frozenset({"allreduce_"})  # What c10d registers for sparse tensors.
_KEYS = ("CPU", "CUDA", "SparseCPU", "SparseCUDA")
_UNSEEN = nullcontext()
_num_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 - torch's name
_methods: dict[str, Method] = {}  # By operator.


def as_operator(operator: str) -> Callable[[Method], Method]:
    """Make a method of a group one of c10d's operators under modes and subclasses."""

    def decorate(method: Method) -> Method:
        _methods[operator] = method

        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            check_owner(self)
            if capturing:
                _keep(method, self, args, kwargs)
            first = args[0] if args else None
            if type(first) not in _PLAIN:
                first = _first(args)
            if (first is None or first.is_sparse) and not self.is_constructed_by_program:
                _check_dispatched(operator, args, first)
            if self.checker is not None:
                self.checker.check(operator, args)
            with profiler.operator(operator) if profiler.is_any_open() else _UNSEEN:
                if not _num_modes() and (first is None or type(first) in _PLAIN):
                    return method(self, *args, **kwargs)
                return _dispatch(operator, self, args, kwargs)

        return call

    return decorate


def in_graphs(method: Method) -> Method:
    """Make a method of a group part of captured graphs."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        if capturing:
            _keep(method, self, args, {})
        return method(self, *args)

    return call


def _keep(method: Method, group: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Add an nccl call to the graph that the rank captures; a replay waits for it."""
    first, is_nccl = _first(args), group.simulated.backends.get("cuda") == NCCL
    if not is_nccl or not getattr(first, "is_cuda", True):
        return
    if captured_graph() is None:
        return
    kept = frozen_all(args)

    def again() -> None:
        work = method(group, *kept, **kwargs)
        if work is not None:
            work.wait()

    activation.keep_in_graph(again, _tensors(args))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a call."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _first(args: Sequence[Any]) -> Any:
    """Return the first tensor of a call, or None."""
    first = args[0] if args else None
    while isinstance(first, (list, tuple)):
        first = first[0] if first else None
    return first


def _check_dispatched(operator: str, args: Sequence[Any], first: torch.Tensor | None) -> None:
    """Raise the dispatcher's error for a call without a kernel.

    Raises:
        NotImplementedError: The call has no tensor, or a sparse one that c10d does not take.
    """
    if first is None:
        if next(_tensors(list(args)), None) is None:
            raise NotImplementedError(
                "There were no tensor arguments to this function (e.g., you passed an empty list "
                "of Tensors), but no fallback function is registered for schema "
                f"c10d::{operator}."
            )
    elif operator not in _SPARSE:
        key = f"Sparse{first.device.type.upper()}"
        raise NotImplementedError(
            f"Could not run 'c10d::{operator}' with arguments from the '{key}' backend."
        )


class _Call:
    """One call on its way through the dispatcher.

    Attributes:
        arguments: Of the method, by name.
        work: What it returned, once the operator has run.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.work: dist.Work | None = None


def _dispatch(operator: str, group: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a method through its operator: modes may change the tensors or the result."""
    _kernels.install()
    bound = inspect.signature(_methods[operator]).bind(group, *args, **kwargs)
    names = list(bound.arguments)
    call = _Call({name: bound.arguments[name] for name in names[1:]})
    overload: Any = getattr(torch.ops.c10d, operator).default
    parameters = overload._schema.arguments  # noqa: SLF001 - torch's name
    num_tensors = _num_tensors(overload)
    values = [
        _shaped(value, str(parameter.type))
        for value, parameter in zip(call.arguments.values(), parameters[:num_tensors], strict=False)
    ]
    rest = [_option(parameter, call.arguments) for parameter in parameters[num_tensors + 1 :]]
    group.calls.append(call)
    try:
        result = overload(*values, group.boxed(), *rest)
    finally:
        group.calls.pop()
    if call.work is not None:
        return call.work
    return dist.Work.unbox(result[-1] if isinstance(result, tuple) else result)


def _num_tensors(overload: Any) -> int:
    """Return the number of an operator's arguments before the group."""
    parameters = overload._schema.arguments  # noqa: SLF001 - torch's name
    return [parameter.name for parameter in parameters].index("process_group")


def _shaped(value: Any, kind: str) -> Any:
    """Return tensors nested in lists as an operator takes them."""
    depth = kind.count("List[")
    held, own_depth = value, 0
    while isinstance(held, list | tuple):
        own_depth += 1
        held = held[0] if held else None
    for _ in range(depth - own_depth if held is not None else 0):
        value = [value]
    return value


def _option(parameter: Any, arguments: dict[str, Any]) -> Any:
    """Return an operator's argument for an option of a call."""
    name, opts = parameter.name, arguments.get("opts")
    if name == "reduce_op":  # None but C++ can read it; the method has the right one.
        return torch.classes.c10d.ReduceOp()
    if name == "root_rank":
        return getattr(opts, "rootRank", arguments.get("root", 0))
    if name == "async_op":
        return bool(getattr(opts, "asyncOp", True))
    if name in arguments:
        value = arguments[name]
        return list(value) if isinstance(value, list | tuple) else value
    if parameter.has_default_value():
        return parameter.default_value
    return None if "Optional" in str(parameter.type) else [] if "List" in str(parameter.type) else 0


def _kernel(operator: str) -> Callable[..., Any]:
    """Return an operator's kernel: it calls the method of the group."""
    overload: Any = getattr(torch.ops.c10d, operator).default
    num_tensors, num_results = _num_tensors(overload), len(overload._schema.returns)  # noqa: SLF001 - torch's name

    def run(*args: Any) -> Any:
        group: Any = dist.ProcessGroup.unbox(args[num_tensors])
        calls = getattr(group, "calls", None)
        if not calls:
            raise UnsupportedError(
                f"c10d.{operator} of a real process group under a dispatch mode inside a Context"
            )
        call = calls[-1]
        arguments = call.arguments | dict(zip(call.arguments, args[:num_tensors], strict=False))
        call.work = _methods[operator](group, **arguments)
        boxed = call.work.boxed()
        return boxed if num_results == 1 else (args[0], boxed)

    return run


class Kernels:
    """simrank's kernels of c10d's operators, registered at their first use."""

    _may_be = False

    def __init__(self) -> None:
        self._library: Any = None

    def install(self) -> None:
        """Register the kernels once."""
        if self._library is not None:
            return
        self._library = operators.Library("c10d", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It says that another kernel was there: it was.
            for operator in _methods:
                for key in _KEYS:
                    self._library.impl(operator, _kernel(operator), key)

    @property
    def may_be(self) -> bool:
        """Return whether the kernels may be registered; setting it to False restores torch's."""
        return self._may_be

    @may_be.setter
    def may_be(self, may_be: bool) -> None:
        self._may_be = may_be
        if not may_be and self._library is not None:
            self._library._destroy()  # noqa: SLF001 - torch's name
            self._library = None


_kernels = Kernels()


def patches() -> list[tuple[Any, str, Any]]:
    """Return the switch that restores torch's kernels at the end."""
    return [(_kernels, "may_be", True)]
