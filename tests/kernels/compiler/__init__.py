"""A package, so that its tests share the kernels beside it."""
