"""Strides of results, for operators whose fake kernels or decompositions order dimensions otherwise than the kernel does."""
