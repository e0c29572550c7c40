"""`nvidia-smi` on ranks lists what they have."""

import os
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import simrank  # noqa: E402
from simrank.errors import UnsupportedError  # noqa: E402


def on_a_rank(program):
    """Run a program on a rank with simulated devices."""
    with simrank.Context("hgx_h100", carrier="thread", cuda_devices="simulated") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=1, share_args=True)


def test_the_list_of_gpus_is_that_of_the_simulated_devices():
    """However a program starts it; other commands are what they are."""
    found, name = [], []

    def program(rank):
        command = ["nvidia-smi", "--list-gpus"]
        found.append(subprocess.check_output(command, text=True))
        found.append(subprocess.check_output("/usr/bin/nvidia-smi -L", shell=True, text=True))
        with os.popen("nvidia-smi -L") as pipe:
            found.append(pipe.read())
        found.append(subprocess.run(args=command, stdout=-1, text=True, check=True).stdout)
        assert subprocess.check_output(["echo", "nvidia-smi"]) == b"nvidia-smi\n"
        name.append(torch.cuda.get_device_name(0))
        assert torch.cuda.device_count() == len(found[0].splitlines())

    on_a_rank(program)
    assert len(set(found)) == 1
    assert found[0].splitlines()[0] == (
        f"GPU 0: {name[0]} (UUID: GPU-00000000-0000-0000-0000-000000000000)"
    )


def test_other_questions_are_refused_by_name():
    """Not answered by whatever GPU the machine has."""

    def program(rank):
        with pytest.raises(UnsupportedError, match="nvidia-smi -q: of nvidia-smi's questions"):
            subprocess.run(["nvidia-smi", "-q"], check=False)

    on_a_rank(program)
