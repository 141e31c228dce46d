"""Compiles functional aten graphs to Triton kernels: lowering, schedule, source, and the levels on which kernels run."""
