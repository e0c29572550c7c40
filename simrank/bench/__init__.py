"""YAML-configured benchmarks: start with `run`; each rank executes `program`."""

from simrank.bench.run import run
from simrank.bench.series import Row

__all__ = ["Row", "run"]
