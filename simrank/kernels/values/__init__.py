"""What kernels compute with: types of elements, blocks of them, and their operators.

Read `block`, then `types` (Triton's types and promotion) and `operators`.
"""
