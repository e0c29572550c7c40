"""Built-in clusters for devices that files name by a PCI number."""

from __future__ import annotations

import re
from pathlib import Path

from simrank.config.locate import builtin_names
from simrank.config.quantity import hint
from simrank.errors import ConfigError, ConfigProblem

# Short names beside those of the clusters.
SHORT = {
    "a100": "hgx_a100",
    "h100": "hgx_h100",
    "h200": "hgx_h200",
    "b200": "hgx_b200",
    "gb200": "gb200_nvl72",
    "gb300": "gb300_nvl72",
    "gh200": "gh200_slingshot",
    "l40s": "l40s_pcie",
}
# PCI vendor and device, of exactly the built-in device: its memory and form.
# Source: the PCI ID Repository (pci-ids.ucw.cz), vendor 10de.
_BY_PCI_ID = {
    ("0x10de", "0x20b2"): "hgx_a100",  # GA100 [A100 SXM4 80GB]
    ("0x10de", "0x2330"): "hgx_h100",  # GH100 [H100 SXM5 80GB]
    ("0x10de", "0x2335"): "hgx_h200",  # GH100 [H200 SXM 141GB]
    ("0x10de", "0x2342"): "gh200_slingshot",  # GH100 [GH200 120GB / 480GB]
    ("0x10de", "0x2901"): "hgx_b200",  # GB100 [B200]
    ("0x10de", "0x2941"): "gb200_nvl72",  # GB100 [HGX GB200]
    ("0x10de", "0x26b9"): "l40s_pcie",  # AD102GL [L40S]
}


def device_of_pci(vendor: str, device: str) -> str | None:
    """Return the built-in cluster of a device's PCI numbers, or None."""
    return _BY_PCI_ID.get((vendor.lower(), device.lower()))


def device_named(word: str) -> str:
    """Return the built-in cluster of a `--device` value.

    Raises:
        ConfigError: It is missing or unknown.
    """
    names = builtin_names("clusters")
    found = SHORT.get(word, word)
    if found in names:
        return found
    choices = [*SHORT, *names]
    to_fix = hint(word, choices)
    expected = f"one of {', '.join(choices)}"
    raise ConfigError(ConfigProblem("command line", None, "--device", expected, word, to_fix))


def name_of(file: str) -> str:
    """Return the cluster name of a file, without characters that names may not have."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(file).stem)
    return name if re.match(r"[A-Za-z_]", name) else f"node_{name}"
