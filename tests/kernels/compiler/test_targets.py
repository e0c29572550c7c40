"""What kernels are compiled for."""

from types import SimpleNamespace

import pytest

from simrank.kernels.compiler.targets import nvidia_target_of, target_of


@pytest.mark.parametrize(
    ("name", "backend", "arch"),
    [
        ("NVIDIA A100 80GB", "cuda", 80),
        ("nvidia l40s", "cuda", 89),
        ("GB200", "cuda", 100),
        ("GB300", "cuda", 103),
        ("MI300X", "hip", "gfx942"),
        ("MI325X", "hip", "gfx942"),
        ("MI355X", "hip", "gfx950"),
        ("a device of tomorrow", "cuda", 90),
    ],
)
def test_the_name_of_a_device_says_what_its_kernels_are_compiled_for(name, backend, arch):
    """A Hopper where it says nothing."""
    target = target_of(SimpleNamespace(name=name))
    assert (target.backend, target.arch) == (backend, arch)


def test_in_a_kernel_every_device_is_one_of_nvidias():
    """Those of others stand for a Hopper there."""
    assert nvidia_target_of(SimpleNamespace(name="MI300X")).arch == 90
    assert nvidia_target_of(SimpleNamespace(name="A100")).arch == 80
