"""The simulator held against real processes: start with `compared`."""
