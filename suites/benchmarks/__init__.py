"""Benchmarks of suites: what a sweep costs."""
