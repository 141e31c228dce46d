"""Capture: Python bytecode read symbolically into graphs, guards and side effects (docs/adr/0011-capture.md).

Counterpart: torch/_dynamo
"""
