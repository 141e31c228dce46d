"""CPython's bytecode, versions 3.10 to 3.13, as one instruction set. Needs no torch, and no module of refimpl that does.

Counterpart: torch/_dynamo/bytecode_analysis.py, bytecode_transformation.py
Differs: instructions are read, never written: nothing here makes code objects.
"""
