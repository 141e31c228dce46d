"""Tensors of drawn programs, as data: shapes, and specs of `oracle.inputs`."""
