"""Units of an SM for operations on blocks, by throughput.

Tensor cores are not alone in a kernel: between two dots of attention stand exponentials, maxima
and conversions, and those take their time (rule K4). Integers are mostly addresses, of which one
is computed for 16 bytes side by side, and masks: neither is counted.
"""

# Rows of the programming guide's table of throughputs.
FUSED = 0  # Additions and multiplications of floats: two of them mostly become one instruction.
SIMPLE = 1  # Comparisons, choices, conversions, bits of integers, steps of reductions.
SPECIAL = 2  # Exponentials, logarithms, roots, divisions, sines.
NUM_UNITS = 3
