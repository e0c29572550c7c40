"""simrank: a multi-GPU program in one Python process, with real numbers and simulated time."""
