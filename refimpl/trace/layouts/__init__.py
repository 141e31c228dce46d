"""Strides of results where fake kernels disagree with eager's kernels: from trial operands, and by rules for views."""
