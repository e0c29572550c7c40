"""Tests of simrank.kernels; a package, so that its tests share cases and a corpus."""
