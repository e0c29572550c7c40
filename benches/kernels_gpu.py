"""The corpus of kernels on a real GPU beside simrank: outputs compared, times side by side.

`python benches/kernels_gpu.py [--cluster NAME] [--json FILE]` needs a GPU, torch and triton; it is
`simrank compare --kernels` on the tests' corpus. The GPU runs in a process of its own, first; then
the same launches run here, on one simulated device. Exit status 1 if an output of the GPU or of
simrank is wrong, 4 without a GPU.

`--device cpu` puts Triton's own interpreter in the GPU's place: it shows that the comparison works,
on machines without a GPU; it measures no times, and its bf16 and fp8 are wrong in themselves.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import triton

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from simrank.cli.compare import MISSING  # noqa: E402 - the path was added just now
from simrank.validate.compare.kernels import compare_kernels, lines  # noqa: E402
from simrank.validate.compare.program import MissingError  # noqa: E402

CORPUS = ROOT / "tests" / "kernels" / "corpus_runs.py"
# What Triton 3.9 has removed.
_VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
REMOVED = ("matmul_block_pointers",) if _VERSION >= (3, 9) else ()


def main() -> None:
    """Run both sides and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cluster", default="hgx_h100", help="whose device is simulated")
    parser.add_argument("--json", help="write the rows, for benches/results")
    options = parser.parse_args()
    try:
        found = compare_kernels(
            str(CORPUS), cluster=options.cluster, device=options.device, skip=REMOVED
        )
    except MissingError as error:
        print(error, file=sys.stderr)
        sys.exit(MISSING)
    print("\n".join(lines(found)))
    if options.json:
        text = json.dumps(asdict(found), indent=1) + "\n"
        Path(options.json).write_text(text, encoding="ascii")
    sys.exit(0 if all(row.ok for row in found.rows) else 1)


if __name__ == "__main__":
    main()
