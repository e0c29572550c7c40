"""Predicted times and their terms, tuner files, plans of layouts; start with `predict`."""
