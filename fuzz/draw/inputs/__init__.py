"""Tensors of drawn programs, as data: shapes, and specs of `oracle.program.inputs`."""
