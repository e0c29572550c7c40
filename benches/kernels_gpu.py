"""The corpus of kernels on a real GPU beside simrank: outputs compared, times side by side.

`python benches/kernels_gpu.py [--cluster NAME] [--json FILE]` needs a GPU, torch and triton. The
GPU runs in a process of its own, first; then the same launches run here, on one simulated device.
Exit status 1 if an output of the GPU or of simrank is wrong.

`--device cpu` puts Triton's own interpreter in the GPU's place: it shows that the comparison works,
on machines without a GPU; it measures no times, and its bf16 and fp8 are wrong in themselves.
"""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN204

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import ml_dtypes
import numpy as np
import triton

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.kernels.corpus_runs import RUNS, Bench  # noqa: E402 - the path was added just now

if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):  # It has removed them.
    del RUNS["matmul_block_pointers"]
WIDE = {"bfloat16": np.int16, "float8_e4m3fn": np.int8}  # What carries types numpy has not itself.


class GpuBench(Bench):
    """Runs launches on torch tensors.

    Attributes:
        launches: What was launched, for timing.
    """

    def __init__(self, device):
        super().__init__(None, None)
        self.device = device
        self.launches = []

    def put(self, *arrays):
        """Return arrays as tensors of the device."""
        import torch  # noqa: PLC0415 - only in the process of the GPU

        found = []
        for array in arrays:
            carrier = WIDE.get(array.dtype.name)
            given = np.array(array, order="C")  # A copy: the kernel may write to it.
            tensor = torch.from_numpy(given if carrier is None else given.view(carrier))
            if carrier is not None:
                tensor = tensor.view(getattr(torch, array.dtype.name))
            found.append(tensor.to(self.device))
        return found[0] if len(found) == 1 else found

    def launch(self, kernel, grid, *args, **constants):
        """Launch a kernel, and remember it."""
        kernel[grid](*args, **constants)
        self.launches.append((kernel, grid, args, constants))

    def expect(self, tensor, wanted, tolerance=1e-5):
        """Keep an output as it is now."""
        self.results.append((as_array(tensor), np.asarray(wanted, np.float64), tolerance))

    def times_us(self):
        """Return each kernel's name and time; it runs many times, so outputs are taken before."""
        if self.device == "cpu":
            return []
        return [
            (
                kernel.__name__,
                1000 * triton.testing.do_bench(lambda c=call: c[0][c[1]](*c[2], **c[3])),
            )
            for call in self.launches
            for kernel in call[:1]
        ]


def as_array(tensor):
    """Return a tensor of torch as an array."""
    import torch  # noqa: PLC0415 - only in the process of the GPU

    name = str(tensor.dtype).removeprefix("torch.")
    if name in WIDE:
        carrier = getattr(torch, np.dtype(WIDE[name]).name)
        return tensor.cpu().view(carrier).numpy().view(getattr(ml_dtypes, name))
    return tensor.cpu().numpy()


class SimulatedBench(Bench):
    """Runs launches on a simulated device.

    Attributes:
        launches: The operations.
    """

    def __init__(self, ctx):
        super().__init__(ctx, "auto")
        self.launches = []

    def launch(self, kernel, grid, *args, **constants):
        """Launch a kernel, and remember it."""
        self.launches.append(self.ctx.launch(kernel, grid, *args, **constants))

    def times_us(self):
        """Return each kernel's name and simulated time."""
        return [(op.launch.name, op.cost.duration_ps / 1e6) for op in self.launches]


def run_all(make_bench):
    """Return by run: outputs and times, or what was raised."""
    found = {}
    for name, run in RUNS.items():
        bench = make_bench()
        try:
            run(bench)
            found[name] = bench.results, bench.times_us()
        except Exception:  # noqa: BLE001 - shown in the run's row
            found[name] = traceback.format_exc()
    return found


def on_gpu(device, file):
    """Run everything on a device and write what came out."""
    import torch  # noqa: PLC0415 - only in the process of the GPU

    triton.set_allocator(
        lambda size, _alignment, _stream: torch.empty(size, dtype=torch.int8, device=device)
    )
    is_real = device != "cpu"
    about = torch.cuda.get_device_name() if is_real else "Triton's interpreter"
    found = run_all(lambda: GpuBench(device))
    Path(file).write_bytes(pickle.dumps((about, torch.__version__, found)))


def simulated(cluster):
    """Run everything on one simulated device."""
    import simrank  # noqa: PLC0415 - not in the process of the GPU

    found = {}
    with simrank.Context(cluster) as ctx:
        ctx.multiprocessing.spawn(
            lambda _rank: found.update(run_all(lambda: SimulatedBench(ctx))), nprocs=1
        )
    return found


def row_of(name, theirs, ours):
    """Return what the comparison of one run says, as plain data."""
    for side, found in (("gpu", theirs), ("simrank", ours)):
        if isinstance(found, str):
            return {
                "kernel": name,
                "ok": False,
                "error": f"{side}: {found.strip().splitlines()[-1]}",
            }
    wrong, apart = [], 0.0
    for (gpu, wanted, tolerance), (own, _, _) in zip(theirs[0], ours[0], strict=True):
        sides = [np.asarray(side).astype(np.float64) for side in (gpu, own)]
        close = [np.allclose(side, wanted, rtol=tolerance, atol=tolerance) for side in sides]
        wrong += [
            side for side, is_close in zip(("gpu", "simrank"), close, strict=True) if not is_close
        ]
        apart = max(apart, float(np.max(np.abs(sides[0] - sides[1]), initial=0)))
    gpu_us, own_us = (sum(time for _, time in side[1]) for side in (theirs, ours))
    return {
        "kernel": name, "ok": not wrong, "wrong": wrong, "largest_difference": apart,
        "gpu_us": gpu_us or None, "simulated_us": own_us,
    }  # fmt: skip


def show(rows):
    """Print a table."""
    print(f"{'kernel':24} {'largest difference':>18} {'GPU us':>9} {'simulated us':>12}")
    for row in rows:
        if "error" in row:
            print(f"{row['kernel']:24} {row['error']}")
            continue
        measured = "-" if row["gpu_us"] is None else f"{row['gpu_us']:.1f}"
        verdict = f"  wrong: {', '.join(row['wrong'])}" if row["wrong"] else ""
        print(
            f"{row['kernel']:24} {row['largest_difference']:18.3g} {measured:>9} "
            f"{row['simulated_us']:12.1f}{verdict}"
        )


def main():
    """Run both sides and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cluster", default="hgx_h100", help="whose device is simulated")
    parser.add_argument("--json", help="write the rows, for benches/results")
    parser.add_argument("--on-gpu", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_gpu:
        on_gpu(options.device, options.on_gpu)
        return
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if options.device == "cpu" else {})
    # As numpy, which fuses no product with a sum.
    environment["TRITON_DEFAULT_FP_FUSION"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "found")
        command = [sys.executable, __file__, "--device", options.device, "--on-gpu", file]
        subprocess.run(command, env=environment, check=True)
        about, torch_version, theirs = pickle.loads(Path(file).read_bytes())
    ours = simulated(options.cluster)
    rows = [row_of(name, theirs[name], ours[name]) for name in RUNS]
    versions = f"torch {torch_version}, triton {triton.__version__}, numpy {np.__version__}"
    versions += f", Python {platform.python_version()}"
    print(f"{about} beside a device of {options.cluster}; {versions}")
    show(rows)
    num_ok = sum(row["ok"] for row in rows)
    print(f"{num_ok} of {len(rows)} runs are right on both sides")
    if options.json:
        facts = {"device": about, "cluster": options.cluster, "versions": versions, "rows": rows}
        Path(options.json).write_text(json.dumps(facts, indent=1) + "\n", encoding="ascii")
    sys.exit(0 if num_ok == len(rows) else 1)


if __name__ == "__main__":
    main()
