"""Benchmarks of refimpl beside the systems it stands in for."""
