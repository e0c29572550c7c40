"""A package, so that its tests share what is beside it."""
