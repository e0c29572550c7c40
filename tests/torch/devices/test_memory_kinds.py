"""Kinds of the large blocks of a device, told by phases of steps and by what lives through them."""

import shutil

import pytest
import torch

from simrank.torch.devices.memory_kinds import DeviceKinds, Held

MIB = 1 << 20


def held(size_mib, phase):
    """Return a block of the first device."""
    return Held(0, 0, size_mib * MIB, None, phase)


def in_mib(found):
    """Return the sums that are not 0, in MiB."""
    return {kind: size // MIB for kind, size in found.items() if size}


def test_a_peak_before_the_first_step_knows_its_parameters():
    """They are what forward has allocated and the step finds; activations are gone by then."""
    kinds = DeviceKinds()
    parameter, activation, gradient = held(4, "forward"), held(8, "forward"), held(3, "backward")
    kinds.add(parameter)
    kinds.add(activation)
    assert kinds.text() == "parameters and activations 0.01 GiB"
    kinds.add(gradient)
    kinds.remove(activation)
    kinds.begin_step([parameter, gradient], [])
    state = held(2, "optimizer")
    kinds.add(state)
    assert in_mib(kinds.at_peak) == {"parameters": 4, "activations": 8, "gradients": 3}
    assert kinds.text().startswith("parameters 0.00 GiB, gradients 0.00 GiB, optimizer states ")


def test_what_came_after_the_peak_does_not_change_it():
    """A block that takes the place of another one is none of it."""
    kinds = DeviceKinds()
    first = held(5, "forward")
    kinds.add(first)
    kinds.remove(first)
    later = held(4, "forward")
    kinds.add(later)
    kinds.begin_step([later], [])
    assert in_mib(kinds.at_peak) == {"activations": 5}


def test_exchanged_memory_is_a_buffer_but_not_what_is_known():
    """A parameter that is broadcast stays one; gradients may lie in what forward has allocated."""
    kinds = DeviceKinds()
    parameter, flat, gathered = held(4, "forward"), held(6, "forward"), held(2, "recomputation")
    for each in (parameter, flat, gathered):
        kinds.add(each)
    kinds.exchange(gathered)
    kinds.begin_step([parameter, flat, gathered], [flat])
    kinds.exchange(parameter)
    assert in_mib(kinds.at_peak) == {"parameters": 4, "gradients": 6, "communication buffers": 2}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for simulated devices")
def test_peaks_are_those_of_the_whole_run_after_the_program_resets_its_own(spawn):
    """As torchtitan does after each step that it logs."""

    def program(_rank):
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        held = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.max_memory_allocated() == 2 * MIB
        del held

    memory = spawn(program, 1).devices[0].memory
    assert memory.peak_bytes == 64 * MIB
    assert memory.peak_reserved_bytes == 64 * MIB
    assert list(memory.totals_bytes) == [64 * MIB, 0, 2 * MIB, 0]
