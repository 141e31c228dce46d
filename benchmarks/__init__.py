"""Compares the speed of this project's parts with their peers (`python -m benchmarks`), and makes tables of other figures.

Only a checkout has this package: it imports all other packages, and none imports it.
"""
