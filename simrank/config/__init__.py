"""YAML to frozen, checked models; start with `load_cluster_config` and `load_bench_config`."""

from simrank.config.bench import BenchConfig, bench_config_from_mapping, load_bench_config
from simrank.config.check import check_file
from simrank.config.cluster import ClusterConfig
from simrank.config.load import load_cluster_config
from simrank.config.locate import builtin_clusters, configs_dir
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
