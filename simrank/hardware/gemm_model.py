"""Times of matrix products on any device: the rule, times the residual of measured rows.

A device names the measured one whose rows it takes (`measured_as`). They are its own where their
facts agree, else those of a sibling. Without rows, the rule's constants are those of the measured
device that is nearest by compute capability, or of all measured devices together.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, exp
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.hardware.gemm_rows import (
    ANY,
    ITEMSIZES,
    PEAK_OF,
    GemmDevice,
    GemmFit,
    MeasuredDevice,
    measured_devices,
    quantising_us,
    read_fits,
    read_rows,
    read_widths,
    residual_of,
    size_class,
)
from simrank.hardware.spec import clock_hz, compute_capability
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from simrank.hardware.spec import DeviceSpec, Product

OWN, SIBLING, NO_RELATIVE = RELATIONS = ("own", "sibling", "no relative")
# torch's dtype -> the kind of product whose tables hold.
KIND_OF = {
    "bfloat16": "bfloat16",
    "float16": "bfloat16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}
_PEAK_NAME = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn"}
_DEFAULT_L2_BYTES = 50e6  # H100's; assumed where a cluster does not say. Only L40S's rows show it.
_DEFAULT_CLOCK_GHZ = 1.9  # Assumed where a cluster states no FP32 peak.
_SAME = 0.02  # Facts that differ by less are those of the same device.
_AMD = "MI3"  # A part of the names of AMD's CDNA 3 and 4.
_FALLBACK_SHARE = 0.25  # Of a fallback's time: a kernel's floor is 0.01 to 0.04, L40S's own 0.47.
_SAME_WORK = {"fp8_block": "fp8"}  # A kind -> another with the same arithmetic and bytes.
_NVFP4_PER_BFLOAT16 = 4.0  # Peaks of Blackwell's tensor cores, where nothing nearer is known.


class ProductModel(NamedTuple):
    """The times of one kind of product on one device.

    Attributes:
        kind: A key of `ITEMSIZES`.
        machine: Facts of the device.
        fit: The rule's constants.
        donor: The measured device whose rows hold, or None.
        basis: The measured device whose constants hold, or `ANY`.
        relation: One of `RELATIONS`.
    """

    kind: str
    machine: GemmDevice
    fit: GemmFit
    donor: str | None
    basis: str
    relation: str

    def time_us(self, product: Product) -> float:
        """Return the time of a product in a CUDA graph, in microseconds."""
        sizes = np.array([product], dtype=np.float64)
        ruled = float(self.fit.time_us(self.machine, sizes, self.kind)[0])
        if self.donor is None:
            return ruled
        falls_back = bool(self.fit.falls_back(sizes)[0])
        residual = residual_of(self.kind, self.donor, falls_back=falls_back)
        if residual is None:
            return ruled
        return ruled * exp(residual.log_at(sizes[0], self.machine.num_sms))

    def kernel_us(self, product: Product) -> float:
        """Return the time of the product alone, where its operands are quantised already."""
        if ITEMSIZES[self.kind] >= 2:
            return self.time_us(product)
        sizes = np.array([product], dtype=np.float64)
        constants = self.fit.constants
        quantising = quantising_us(self.machine, sizes, ITEMSIZES[self.kind], constants)
        plain = read_fits()["bfloat16", self.basis].constants.floor_us
        launch = max(constants.floor_us - plain, 0.0)  # Of the kernel that quantises.
        least = 2 * float(sizes.prod()) / self.machine.peak_flops * 1e6
        return max(self.time_us(product) - float(quantising[0]) - launch, plain, least)

    def half_width(self, product: Product) -> float:
        """Return the half-width of the 90% interval of a time, as a logarithm."""
        number = int(size_class(np.array([product]), self.fit)[0])
        device = self.basis if self.relation == OWN else ANY
        widths = read_widths()
        by_class = widths.get((self.kind, self.relation, device))
        if by_class is None:  # Only one architecture has rows: none was ever left out.
            without = [each for key, each in widths.items() if key[1] == NO_RELATIVE]
            by_class = max(without, key=lambda each: max(each.values()))
        return by_class.get(number, max(by_class.values()))


@lru_cache(maxsize=256)
def product_model(spec: DeviceSpec, kind: str) -> ProductModel | None:
    """Return the model of a kind of product; None where the device has no peak for it."""
    devices, fits = measured_devices(), read_fits()
    named = None if spec.measured_as is None else devices[spec.measured_as]
    donor = named if named is not None and named.name in read_rows(kind) else None
    nearest = donor or _nearest(spec, kind)
    if nearest is not None and _lends_a_fallback(spec, kind, nearest):
        return product_model(spec, _SAME_WORK[kind])
    basis = ANY if nearest is None else nearest.name
    machine = _machine(spec, kind, nearest, fits[kind, basis], has_rows=donor is not None)
    if machine is None:
        return None
    relation = _relation(spec, donor, machine, kind)
    found = None if donor is None else donor.name
    return ProductModel(kind, machine, fits[kind, basis], found, basis, relation)


def _nearest(spec: DeviceSpec, kind: str) -> MeasuredDevice | None:
    """Return the measured device of a device's architecture that has a fit, or None."""
    capability = compute_capability(spec.name)
    found = "cdna" if _AMD in spec.name else ".".join(map(str, capability or ()))
    known = [each for each in measured_devices().values() if (kind, each.name) in read_fits()]
    return next((each for each in known if found in each.like), None)


def _lends_a_fallback(spec: DeviceSpec, kind: str, nearest: MeasuredDevice) -> bool:
    """Return whether a device of an earlier generation has no kernel for a kind of product.

    Ada computes block-scaled products by a fallback at all sizes; Blackwell's cards have a kernel,
    which does what one with a scale per tensor does. H100, B200, B300 and GB200 have both: by the
    rule of the other, 89 to 96 % of their products are within a factor of 1.5.
    """
    fit = read_fits()[kind, nearest.name]
    is_fallback = fit.constants.floor_us > _FALLBACK_SHARE * fit.fallback_us > 0
    return kind in _SAME_WORK and is_fallback and not _is_of_its_generation(spec, nearest)


def _machine(
    spec: DeviceSpec, kind: str, nearest: MeasuredDevice | None, fit: GemmFit, *, has_rows: bool
) -> GemmDevice | None:
    """Return the facts of a device; None where it has no peak for the kind of product.

    The best product that a cluster states takes the place of the peak, unless rows hold.
    """
    plain = spec.peak_flops.get("bfloat16")
    peak = _peak(spec, kind, nearest)
    if peak is None or not plain:
        return None
    if spec.best_product_flops is not None and not has_rows:
        # The rule's largest products exceed the best measured row where rows are few (MI355X).
        best_share = max(fit.best_share, fit.constants.efficiency)
        peak *= spec.best_product_flops / (plain * best_share)
    hz = clock_hz(spec)
    return GemmDevice(
        peak,
        spec.num_sms,
        _DEFAULT_CLOCK_GHZ if hz is None else hz / 1e9,
        spec.memory_bandwidth_bytes_per_s,
        _l2_bytes(spec, nearest),
        spec.has_block_clusters if nearest is None else nearest.machine.has_clusters,
    )


def _peak(spec: DeviceSpec, kind: str, nearest: MeasuredDevice | None) -> float | None:
    """Return the peak for a kind of product; nvfp4's follows from bfloat16's."""
    name = _PEAK_NAME.get(PEAK_OF[kind])
    if name is not None:
        return spec.peak_flops.get(name)
    plain = spec.peak_flops.get("bfloat16")
    major = (compute_capability(spec.name) or (0, 0))[0]
    if plain is None or major < 10:
        return None
    if nearest is None or "nvfp4" not in nearest.peaks:
        return plain * _NVFP4_PER_BFLOAT16
    return plain * nearest.peaks["nvfp4"] / nearest.peaks["bfloat16"]


def _l2_bytes(spec: DeviceSpec, nearest: MeasuredDevice | None) -> float:
    if spec.l2_bytes is not None:
        return spec.l2_bytes
    return _DEFAULT_L2_BYTES if nearest is None else nearest.machine.l2_bytes


def _relation(
    spec: DeviceSpec, donor: MeasuredDevice | None, machine: GemmDevice, kind: str
) -> str:
    """Return whether measured rows are a device's own, or those of its architecture."""
    if donor is None:
        return NO_RELATIVE
    measured = donor.machine_in(kind)
    pairs = (
        (machine.peak_flops, measured.peak_flops),
        (machine.num_sms, measured.num_sms),
        (machine.memory_bytes_per_s, measured.memory_bytes_per_s),
    )
    if all(abs(mine / its - 1) < _SAME for mine, its in pairs):
        return OWN
    return SIBLING if _is_of_its_generation(spec, donor) else NO_RELATIVE


def _is_of_its_generation(spec: DeviceSpec, measured: MeasuredDevice) -> bool:
    """Return whether a device has the major compute capability of a measured one.

    The first that a measured device is like is its own; further ones only take its constants.
    """
    major = (compute_capability(spec.name) or (0, 0))[0]
    return not measured.like or measured.like[0].startswith(f"{major}.")


@lru_cache(maxsize=8192)
def product_ps(spec: DeviceSpec, dtype: str, product: Product) -> int | None:
    """Return the time of a library's product in a CUDA graph, in picoseconds.

    None for dtypes of which nothing was measured, or in which the device has no peak.

    Args:
        spec: The device.
        dtype: torch's name of the dtype.
        product: batch, m, n and k.
    """
    kind = KIND_OF.get(dtype)
    model = None if kind is None or min(product) < 1 else product_model(spec, kind)
    return None if model is None else ceil(model.kernel_us(product) * PS_PER_US)
