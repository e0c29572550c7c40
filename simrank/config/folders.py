"""Folders of the built-in configurations, without imports of their readers."""

from pathlib import Path


def configs_dir() -> Path:
    """Return the folder of the built-in configurations.

    It is `configs` inside an installed package, else `configs` beside it in a checkout.
    """
    package = Path(__file__).resolve().parent.parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"
