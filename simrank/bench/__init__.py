"""YAML-configured benchmarks: start with `run`; `program` is what each rank executes."""

from simrank.bench.run import Row, run

__all__ = ["Row", "run"]
