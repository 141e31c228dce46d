"""Strides of results where fake kernels disagree with eager's kernels: from stand-in tensors, and by rules for views."""
