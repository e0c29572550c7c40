"""Laws, and random programs."""
