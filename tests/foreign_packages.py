"""Run short programs of ours on pinned packages of others, with `simrank run`.

Each package is installed into an environment that sees this one's packages (torch among them). A
package that cannot be installed is skipped, and the reason printed. Every program is expected to
end with status 0 and without a finding. `python tests/check.py foreign` runs all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "foreign"
# Package -> its version, and the program that uses it.
PINNED = {
    "tensorboard": ("2.21.0", "tensorboard_writes.py"),
    "lightning": ("2.6.6", "lightning_trains.py"),
    "accelerate": ("1.15.0", "accelerate_trains.py"),
    "transformers": ("5.24.0", "transformers_trains.py"),
    "deepspeed": ("0.19.8", "deepspeed_starts.py"),
    "megatron-core": ("0.16.1", "megatron_layers.py"),
    "torchtitan": ("0.3.0", "torchtitan_starts.py"),
    "liger-kernel": ("0.8.5", "liger_kernel_imports.py"),
}
_HARMLESS = ("returned without destroy_process_group",)  # Notes, not findings.
_LAST_OF_SUMMARY = "constants of the cluster:"


def main() -> int:
    """Run all programs; return 1 if one failed."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        print("skipped: torch is not installed in this environment")
        return 0
    python = _environment()
    failed = []
    for package, (pinned, program) in PINNED.items():
        reason = _install(python, f"{package}=={pinned}", f"torch=={torch}")
        if reason is not None:
            print(f"{package} {pinned}: skipped: {reason}", flush=True)
            continue
        problem = _problem_of(python, PROGRAMS / program)
        print(f"{package} {pinned}: {problem or 'passed'}", flush=True)
        if problem is not None:
            failed.append(package)
    return bool(failed)


def _environment() -> Path:
    """Return the Python of the environment, which is made where there is none."""
    folder = Path(os.environ.get("SIMRANK_FOREIGN", ROOT / ".venv-foreign"))
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        names = f"{sys.version_info.major}.{sys.version_info.minor}"
        packages = folder / "lib" / f"python{names}" / "site-packages"
        own = sysconfig.get_paths()["purelib"]
        (packages / "base.pth").write_text(f"{own}\n{ROOT}\n")
    return python


def _install(python: Path, requirement: str, constraint: str) -> str | None:
    """Install a package; return the reason where that fails."""
    file = python.parent.parent / "constraints.txt"
    file.write_text(constraint + "\n")
    command = [str(python), "-m", "pip", "install", "-q", "-c", str(file), requirement]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in found.stderr.splitlines() if line.startswith("ERROR")]
    return None if not found.returncode else "; ".join(lines[-2:]) or "pip failed"


def _problem_of(python: Path, program: Path) -> str | None:
    """Run a program on two ranks; return what went wrong, or its findings."""
    command = [str(python), "-m", "simrank", "run", "--nproc-per-node", "2", str(program)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=PROGRAMS
    )
    if found.returncode:
        return f"status {found.returncode}\n{found.stderr[-2000:]}"
    return findings_in(found.stderr)


def findings_in(text: str) -> str | None:
    """Return the findings that `simrank run` printed behind its summary, or None."""
    lines = text.partition(_LAST_OF_SUMMARY)[2].splitlines()[1:]
    found = [line for line in lines if not any(words in line for words in _HARMLESS)]
    return "findings:\n" + "\n".join(found) if found else None


if __name__ == "__main__":
    sys.exit(main())
