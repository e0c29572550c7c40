"""Values of kernels: element types, blocks, and their operators.

Read `block`, then `types` (Triton's types and promotion) and `operators`.
"""
