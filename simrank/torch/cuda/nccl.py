"""Names of NCCL that CPU builds of torch lack."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 2 << 32 | 28 << 16 | 9  # 2.28.9, which CUDA builds of torch 2.13 come with (assumed).


def versions() -> dict[str, Callable[[], object]]:
    """Return the functions of `torch._C` for NCCL's version."""
    return {"_nccl_version": lambda: VERSION, "_nccl_version_suffix": lambda: b""}


class NCCLConfig:
    """The configuration of a communicator, ignored by simulated groups."""

    def __init__(self) -> None:
        self.blocking = -1
        self.cga_cluster_size = -1
        self.min_ctas = -1
        self.max_ctas = -1
        self.net_name: str | None = None
        self.split_share = -1


class Options:
    """Replacement of `ProcessGroupNCCL.Options`, ignored by simulated groups."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NCCLConfig()
        self.split_from: object = None
        self.split_color = 0
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self._timeout = timedelta(minutes=10)


class ProcessGroupNCCL:
    """Replacement of the class, for its options and `isinstance`."""

    Options = Options
    NCCLConfig = NCCLConfig
