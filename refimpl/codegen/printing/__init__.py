"""Text of Triton kernels: values of points (`values`), reductions (`reductions`), whole kernels (`kernels`)."""
