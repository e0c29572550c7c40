"""YAML to frozen, checked models; start with `load_cluster_config` and `load_bench_config`."""

from simrank.config.cluster import ClusterConfig
from simrank.config.load import load_cluster_config
from simrank.config.locate import builtin_clusters, configs_dir

__all__ = ["ClusterConfig", "builtin_clusters", "configs_dir", "load_cluster_config"]
