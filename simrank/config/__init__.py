"""YAML to frozen, checked models; start with `load_cluster_config` and `load_bench_config`.

Names are imported when they are first used: a program that loads a cluster need not pay for the
models of benchmarks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simrank.config.bench import BenchConfig, bench_config_from_mapping, load_bench_config
    from simrank.config.check import check_file
    from simrank.config.cluster import ClusterConfig
    from simrank.config.files import configs_dir
    from simrank.config.load import load_cluster_config
    from simrank.config.locate import builtin_clusters
    from simrank.config.measured import MeasuredRow, load_measured

__all__ = [
    "BenchConfig",
    "ClusterConfig",
    "MeasuredRow",
    "bench_config_from_mapping",
    "builtin_clusters",
    "check_file",
    "configs_dir",
    "load_bench_config",
    "load_cluster_config",
    "load_measured",
]
_PLACES = {
    "BenchConfig": "bench",
    "ClusterConfig": "cluster",
    "MeasuredRow": "measured",
    "bench_config_from_mapping": "bench",
    "builtin_clusters": "locate",
    "check_file": "check",
    "configs_dir": "files",
    "load_bench_config": "bench",
    "load_cluster_config": "load",
    "load_measured": "measured",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any value
    if name in _PLACES:
        return getattr(import_module(f"simrank.config.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'simrank.config' has no attribute {name!r}")
