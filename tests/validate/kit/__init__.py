"""Kits for GPUs of others, on a stand-in."""
