"""Functions of SHMEM libraries by their names in C, and which of them wait."""

import pytest

from simrank.kernels.shmem.functions import by_symbol


@pytest.mark.parametrize(
    "symbol",
    [
        "nvshmemx_signal_wait_until",
        "nvshmem_int_wait_until",
        "nvshmemx_barrier_all_block",
        "rocshmem_sync_all",
        "nvshmemx_fcollectmem_warp",
    ],
)
def test_what_ends_only_with_peers_waits(symbol):
    """Waits, barriers and collectives say so, whatever scope their names have."""
    assert by_symbol(symbol).effects.waits


@pytest.mark.parametrize("symbol", ["nvshmem_my_pe", "nvshmemx_putmem_signal_nbi_block"])
def test_what_ends_by_itself_does_not_wait(symbol):
    """Puts publish only; who asks for its rank does nothing that others see."""
    effects = by_symbol(symbol).effects
    assert (effects.publishes, effects.waits) == ("put" in symbol, False)


@pytest.mark.parametrize("symbol", ["nvshmem_no_such_function", "my_pe", "shmem_my_pe"])
def test_other_symbols_are_none_of_a_library(symbol):
    """Neither an unknown name nor one of no library is a function."""
    assert by_symbol(symbol) is None
