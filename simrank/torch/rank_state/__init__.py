"""torch's state per process, for each rank."""
