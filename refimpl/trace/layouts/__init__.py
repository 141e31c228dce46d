"""Strides of results that fake kernels order otherwise than the kernels do: by stand-ins, and by rules for views."""
