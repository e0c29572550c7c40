"""External functions that kernels call by symbol; unknown symbols raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError
from simrank.kernels.running import threads
from simrank.kernels.shmem.functions import by_symbol
from simrank.kernels.values.block import as_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_READS = "llvm.nvvm.read.ptx.sreg."


def _number_of_threads(axis: int) -> int:
    return 1 if axis else threads.num_of_program()


SYMBOLS: dict[str, Callable[..., Any]] = {
    **{f"{_READS}tid.{axis}": threads.index_along(number) for number, axis in enumerate("xyz")},
    f"{_READS}laneid": threads.lane,
    f"{_READS}ntid.x": lambda: _number_of_threads(0),
    f"{_READS}ntid.y": lambda: _number_of_threads(1),
    f"{_READS}ntid.z": lambda: _number_of_threads(2),
}


def extern_elementwise(
    lib_name: str,
    lib_path: str,
    args: Sequence[Any],
    arg_type_symbol_dict: dict[Any, Any],
    is_pure: bool = False,
    **_: Any,
) -> Any:
    """Call an external function; see `tl.core.extern_elementwise`.

    Raises:
        UnsupportedError: The function is not emulated.
        ValueError: No overload has these argument types; the text is Triton's.
    """
    del lib_path, is_pure
    symbols = _symbols(args, arg_type_symbol_dict)
    known = next(filter(None, map(_emulation, symbols)), None)
    if known is None:
        raise UnsupportedError(
            f"the external function {' or '.join(symbols)} of library '{lib_name}' is not supported"
        )
    return known(*args)


def _emulation(symbol: str) -> Callable[..., Any] | None:
    of_library = by_symbol(symbol)
    return SYMBOLS.get(symbol) if of_library is None else of_library.run


def _symbols(args: Sequence[Any], by_types: dict[Any, Any]) -> list[str]:
    """Return the symbols of a function; with several overloads, those for the argument types."""
    symbols = list(dict.fromkeys(result[0] for result in by_types.values()))
    if len(symbols) == 1:
        return symbols
    given = tuple(as_block(arg).dtype for arg in args)
    of_these = [result[0] for types, result in by_types.items() if tuple(types) == given]
    if not of_these:
        raise ValueError(
            f"input arg type does not match. Expect one of {list(by_types)}, got {given}"
        )
    return of_these


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "extern_call": extern_elementwise,
    "extern_elementwise": extern_elementwise,
}
