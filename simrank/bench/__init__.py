"""YAML-configured benchmarks: start with `run`; `program` is what each rank executes."""

from simrank.bench.row import Row
from simrank.bench.run import run

__all__ = ["Row", "run"]
