"""The simulator beside real processes."""
