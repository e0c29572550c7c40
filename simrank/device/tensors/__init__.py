"""Tensors as torch's: what a program computes with, in stream order of the devices below.

Read `tensor` (the class and what it waits for), then `arithmetic` (how an operation is issued);
`namespace` is what a Context has of torch's names.
"""
