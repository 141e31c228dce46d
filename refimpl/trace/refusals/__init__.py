"""Calls that eager's kernels refuse and fake kernels accept: by dtypes, by numbers out of range, by overlapping outputs."""
