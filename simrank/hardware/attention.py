"""Times of serving's attention kernels: a law, times the residual of measured rows.

`configs/attention/rows` has one table per phase, with a column per device; `fit` has the law's
constants and the widths of intervals, which `simrank calibrate --attention` writes. The kernels are
FlashAttention-2 and -3, FlashInfer and TensorRT-LLM, whichever is fastest on the device.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.config.files import configs_dir
from simrank.hardware.gemm_rows import interpolate, widths_in

if TYPE_CHECKING:
    from pathlib import Path

    from simrank.hardware.gemm_rows import GemmDevice

Array = np.ndarray[Any, Any]

PHASES = ("prefill", "full", "decode")
SIZE_CLASSES = ("small", "middle", "large")
# Ends of the size classes: operations of prefill and full, bytes of keys and values of decode.
_ENDS = {"prefill": (1e9, 64e9), "full": (1e9, 64e9), "decode": (4e6, 128e6)}
_BLOCK = 128.0  # Queries of a program, and keys of a step.
_DECODE_STEP = 64.0
_HALF = 2  # Bytes of an element.
_NOISE = 0.05  # Variance of a measurement / that of the residual.
_FEW_WAVES = (0.5, 16.0)
# No row of decode reads more than two caches of keys and values faster than this / a copy's rate;
# 29 of A100 that did, up to 1.9 (its memory's peak: 1.17), were left out.
_READ_PER_COPY = 1.17
_CACHES = 2
_FASTEST_WIDTH = 1.2  # Rate of the widest heads / that of 128.


class AttentionConstants(NamedTuple):
    """Constants of the law, fitted per measured device and phase.

    Attributes:
        floor_us: A kernel of no size, with the write of the cache in prefill.
        efficiency: Rate at heads of 128 / the peak.
        width_power: Of the rate in the width of a head.
        step_us: Least time of a block of keys.
        memory: Rate of reads and writes / a copy's.
        start_us: Start of a program.
        extra_keys: Keys per query that a causal mask does not save, in halves of a block.
    """

    floor_us: float
    efficiency: float
    width_power: float
    step_us: float
    memory: float
    start_us: float
    extra_keys: float


def attention_us(
    machine: GemmDevice, shapes: Array, phase: str, constants: AttentionConstants
) -> Array:
    """Return the times of attention in a CUDA graph, in microseconds.

    Args:
        machine: The device, at its bfloat16 peak.
        shapes: Rows of heads, heads of keys, width of a head, length, batch.
        phase: `prefill`: causal; `full`: without a mask; `decode`: one query over `length` keys.
        constants: Those of the device, or of a sibling.
    """
    heads, kv_heads, width, length, batch = shapes.T.astype(np.float64)
    memory_per_us = constants.memory * machine.memory_bytes_per_s / 1e6
    cache_bytes = 2 * batch * kv_heads * length * width * _HALF
    if phase == "decode":
        memory_us = (cache_bytes + 2 * batch * heads * width * _HALF) / memory_per_us
        parts = np.maximum(machine.num_sms / (batch * kv_heads), 1)
        steps_us = length / parts / _DECODE_STEP * constants.step_us
        found: Array = constants.floor_us + np.sqrt(memory_us**2 + steps_us**2)
        return found
    is_causal = phase == "prefill"
    seen = length / 2 + constants.extra_keys * _BLOCK / 2 if is_causal else length
    keys = np.minimum(seen, length)
    share = np.minimum((width / 128) ** constants.width_power, _FASTEST_WIDTH)
    sm_flops_per_us = constants.efficiency * share * machine.peak_flops / 1e6 / machine.num_sms
    arithmetic_us = 4 * _BLOCK * keys * width / sm_flops_per_us
    program_us = np.hypot(arithmetic_us, keys / _BLOCK * constants.step_us) + constants.start_us
    waves = np.ceil(length / _BLOCK) * heads * batch / machine.num_sms
    rounds = np.where(waves <= 1, 1.0, (np.ceil(waves) + waves) / 2)
    longest = np.where(waves <= 1, np.minimum(length / keys, 2), 1.0) if is_causal else 1.0
    memory_us = (2 * batch * heads * length * width * _HALF + cache_bytes) / memory_per_us
    busy_us = rounds * program_us * longest
    total: Array = constants.floor_us + np.sqrt(np.hypot(busy_us**2, memory_us**2))
    return total


def least_read_us(machine: GemmDevice, shape: Array) -> float:
    """Return the least time to read keys and values beyond the cache, in microseconds.

    Args:
        machine: The device.
        shape: Heads, heads of keys, width of a head, length, batch.
    """
    _, kv_heads, width, length, batch = shape
    num_bytes = 2 * batch * kv_heads * length * width * _HALF
    if num_bytes < _CACHES * machine.l2_bytes:
        return 0.0
    return float(num_bytes / (_READ_PER_COPY * machine.memory_bytes_per_s) * 1e6)


def attention_places(shapes: Array, num_sms: int) -> Array:
    """Return shapes as points; close ones have similar residuals."""
    heads, kv_heads, width, length, batch = shapes.T.astype(np.float64)
    waves = np.ceil(length / _BLOCK) * heads * batch / num_sms
    shows = (waves > _FEW_WAVES[0]) & (waves < _FEW_WAVES[1])
    columns = (
        np.log2(batch * heads),
        np.log2(heads / kv_heads),
        2 * np.log2(width),
        np.log2(length),
        0.5 * np.log2(batch),
        2 * np.log2(np.ceil(waves) / waves) * shows,
    )
    return np.stack(columns, axis=1)


def attention_class(shapes: Array, phase: str) -> Array:
    """Return the index in `SIZE_CLASSES` of each shape."""
    heads, kv_heads, width, length, batch = shapes.T.astype(np.float64)
    flops = 4 * heads * batch * width * length**2 / (2 if phase == "prefill" else 1)
    size = 2 * batch * kv_heads * length * width * _HALF if phase == "decode" else flops
    found: Array = np.searchsorted(_ENDS[phase], size, side="right")
    return found


def folder() -> Path:
    """Return the folder of the tables."""
    return configs_dir() / "attention"


@lru_cache(maxsize=3)
def read_attention(phase: str) -> dict[str, tuple[Array, Array]]:
    """Return the shapes and times in microseconds of each measured device."""
    path = folder() / "rows" / f"{phase}.csv"
    with path.open(encoding="utf-8") as file:
        devices = file.readline().strip().split(",")[5:]
    cells = np.genfromtxt(path, delimiter=",", skip_header=1)
    found = {}
    for column, device in enumerate(devices, start=5):
        known = ~np.isnan(cells[:, column])
        found[device] = cells[known, :5], cells[known, column]
    return found


@lru_cache(maxsize=1)
def read_attention_fits() -> dict[tuple[str, str], AttentionConstants]:
    """Return the constants by phase and device."""
    with (folder() / "fit" / "constants.csv").open(encoding="utf-8", newline="") as file:
        return {
            (row["phase"], row["device"]): AttentionConstants(
                *(float(row[name]) for name in AttentionConstants._fields)
            )
            for row in csv.DictReader(file)
        }


@lru_cache(maxsize=1)
def read_attention_widths() -> dict[tuple[str, str, str], dict[int, float]]:
    """Return half-widths of 90% intervals, as logarithms, by phase, relation and device."""
    return widths_in(folder() / "fit" / "intervals.csv")


@lru_cache(maxsize=32)
def _residual(phase: str, device: str, machine: GemmDevice) -> tuple[Array, Array]:
    shapes, times_us = read_attention(phase)[device]
    ruled_us = attention_us(machine, shapes, phase, read_attention_fits()[phase, device])
    return attention_places(shapes, machine.num_sms), np.log(times_us / ruled_us)


def residual_log(
    phase: str, device: str, measured: GemmDevice, shape: Array, num_sms: int
) -> float:
    """Return the logarithm of measured / ruled time near a shape, on a measured device."""
    shapes, _ = read_attention(phase)[device]
    inside = np.clip(shape, shapes.min(axis=0), shapes.max(axis=0))
    at = attention_places(inside[None], num_sms)[0]
    return interpolate(*_residual(phase, device, measured), at, _NOISE)
