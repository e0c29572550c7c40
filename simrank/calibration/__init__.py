"""Fits of constants to measured tables, and their errors on others; start with `accuracy`.

Reading order: `measured_text` and `nccl_tests_output` (tables), `accuracy` (predictions beside
them), `hold_outs` and `cross_validation`, `calibrate`; `kernel_fits` is about kernels.
"""
