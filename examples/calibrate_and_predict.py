"""Calibrate a cluster to a log of nccl-tests, and predict times with the fitted constants.

Run: python examples/calibrate_and_predict.py
Your own log: mpirun -np 8 all_reduce_perf -b 1K -e 2G -f 2 -g 1 > all_reduce_perf.log
"""

import subprocess
import tempfile
from pathlib import Path

import simrank

LOG = Path(__file__).parent / "all_reduce_perf.log"

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        calibration = Path(folder) / "mine.yaml"
        command = ["simrank", "calibrate", str(LOG), "--cluster", "hgx_h100"]
        subprocess.run([*command, "--out", str(calibration)], check=True)
        for label, word in (("uncalibrated", None), ("calibrated", str(calibration))):
            found = simrank.predict(
                "all_reduce", ["8 KiB", "1 MiB", "256 MiB"], cluster="hgx_h100", calibration=word
            )
            times = zip(found.time_us, found.low_us, found.high_us, strict=True)
            print(
                f"{label:>12}:", *(f"{t:7.1f} ({low:.1f} to {high:.1f})" for t, low, high in times)
            )
