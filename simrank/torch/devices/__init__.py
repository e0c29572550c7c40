"""Simulated CUDA devices of torch ranks, on simrank's devices and streams.

`cuda` below makes devices in CPU memory and knows nothing of ranks; here torch's streams, events
and memory become those of a rank's simulated devices. Start in `rank_devices.py`.
"""
