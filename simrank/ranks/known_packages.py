"""Installed packages that each rank executes for itself, or that all ranks share, unasked."""

from __future__ import annotations

# Packages that keep state of a process (its rank, device, groups) in names of modules or classes,
# or that hold classes of such a package. Ranks that shared them would all be rank 0, silently.
# Not here: datasets and evaluate, which register types with pyarrow once per process.
STATEFUL = frozenset({
    "accelerate", "colossalai", "deepspeed", "diffusers", "fairscale", "ignite", "lightning",
    "lightning_fabric", "lightning_utilities", "liger_kernel", "megatron", "mmengine", "peft",
    "pytorch_lightning", "sentence_transformers", "torchmetrics", "torchtitan", "transformers",
    "trl", "yunchang",
})  # fmt: skip
# Packages that support ranks themselves, or have no state of a rank.
KNOWING = frozenset({"torch", "simrank", "triton", "pytest", "_pytest", "hypothesis"})
