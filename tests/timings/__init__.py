"""Random programs whose outcomes depend on timing, and their outcomes in many runs."""
