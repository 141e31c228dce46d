"""Eager run again to see what its results depend on: in the widest dtype, under rounding noise, by its other kernels."""
