"""Benchmarks of the oracle itself, run by `make bench`."""
