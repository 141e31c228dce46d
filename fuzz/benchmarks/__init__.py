"""Benchmarks of the fuzzer: run by hand, never as tests."""
