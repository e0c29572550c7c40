"""Gives a wheel that carries built libraries the tag of their platform."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TagOfLibraries(BuildHookInterface[Any]):
    """Without libraries, the wheel is for every platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Look for libraries that `simrank torch build --into` has put into the package.

        Args:
            version: Of the target.
            build_data: What the wheel is built from.
        """
        del version
        if any(Path(self.root, "simrank/torch/cuda/lib").glob("*/*.so")):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"  # They do not know of Python.
