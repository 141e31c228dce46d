"""Reads the bytecode of CPython 3.10 to 3.13 into one instruction set. Imports neither torch nor a module of refimpl that does.

Counterpart: torch/_dynamo/bytecode_analysis.py, bytecode_transformation.py
Differs: instructions are read and never written: nothing here makes code objects.
"""
