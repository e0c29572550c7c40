"""The options of `pytest --simrank`, and whether a session of pytest is to drive ranks.

pytest loads this in every run: everything else is imported when it is asked for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from simrank.suites.driver import Driver

_SHOWS = ("help", "version", "showfixtures", "show_fixtures_per_test", "markers")


def add_options(group: Any) -> None:
    """Add them to a group of pytest's parser."""
    group.addoption(
        "--simrank",
        metavar="N",
        type=int,
        default=None,
        help="run every test on N simulated ranks, as `torchrun --nproc-per-node N -m pytest` does",
    )
    group.addoption(
        "--simrank-cluster",
        metavar="NAME|FILE",
        default=None,
        help="with --simrank: the simulated machine [HGX H100 nodes]",
    )
    group.addoption(
        "--simrank-private",
        metavar="PACKAGE",
        action="append",
        default=None,
        help="with --simrank: a package that each rank executes for itself; repeatable",
    )
    group.addoption(
        "--simrank-devices",
        choices=("simulated", "real"),
        default=None,
        help="with --simrank: what cuda means to torch [what torch was built for]",
    )
    group.addoption(
        "--simrank-divergence",
        action="store_true",
        default=None,
        help="with --simrank: name the line at which ranks diverged before a hang or mismatch",
    )


def driver_for(config: pytest.Config) -> Driver | None:
    """Return the driver of ranks if `--simrank` is given; it loads conftests.

    Raises:
        UsageError: The number of ranks is below one.
    """
    asked = config.known_args_namespace
    num_ranks = getattr(asked, "simrank", None)
    if num_ranks is None or _is_part() or any(getattr(asked, name, False) for name in _SHOWS):
        return None
    if num_ranks < 1:
        raise pytest.UsageError(f"--simrank={num_ranks}: expected 1 or more ranks")
    from simrank.suites.driver import Driver  # noqa: PLC0415 - see above

    settings = {
        "cluster": asked.simrank_cluster,
        "private": asked.simrank_private,
        "cuda_devices": asked.simrank_devices,
        "divergence": asked.simrank_divergence,
    }
    driver = Driver(config, num_ranks, {k: v for k, v in settings.items() if v is not None})
    config.pluginmanager.register(driver, "simrank suites")
    asked.noconftest = True
    return driver


def _is_part() -> bool:
    """Whether the session that starts is one that `--simrank` has made, or a real worker's."""
    session = sys.modules.get("simrank.suites.session")
    current = sys.modules.get("simrank.ranks.current")
    is_rank = current is not None and current.rank_program() is not None
    validate = sys.modules.get("simrank.validate.this_worker")
    is_worker = validate is not None and validate.is_worker()
    return is_rank or is_worker or (session is not None and bool(session.parsing))
