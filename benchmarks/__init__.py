"""Benchmarks that compare the speed of this project's parts with their peers (`python -m benchmarks`), and tables of other
measurements.

Only a checkout has this package: it imports all other packages, and none imports it.
"""
