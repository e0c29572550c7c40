"""YAML-configured benchmarks: start with `run`; each rank executes `program`."""

from simrank.bench.row import Row
from simrank.bench.run import run

__all__ = ["Row", "run"]
