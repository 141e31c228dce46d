"""Capture: interprets Python bytecode symbolically and produces graphs, guards and side effects (docs/adr/0011-capture.md).

Counterpart: torch/_dynamo
"""
