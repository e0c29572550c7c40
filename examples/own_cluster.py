"""Compare algorithms of an all-reduce on a cluster of your own, which own_cluster.yaml describes.

Run: python examples/own_cluster.py
"""

from pathlib import Path

import simrank

CLUSTER = Path(__file__).parent / "own_cluster.yaml"

if __name__ == "__main__":
    config = {
        "cluster": str(CLUSTER),
        "collectives": ["all_reduce"],
        "algorithms": ["ring", "one_shot", "two_shot", "halving_doubling"],
        "sizes": ["16 KiB", "16 MiB"],
        "in_place": False,
    }
    for row in simrank.bench.run(config):
        print(
            f"{row['size_bytes']:>9} B  {row['algorithm']:>16}"
            f" {row['time_us']:8.1f} us {row['busbw_GBps']:6.1f} GB/s"
        )
