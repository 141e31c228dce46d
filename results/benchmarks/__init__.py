"""Benchmarks of results: run by hand or by `make bench`."""
