"""Further runs of eager that show how exact its results are: in the widest dtype, under rounding noise, by other kernels."""
