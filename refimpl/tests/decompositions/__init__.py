"""Every rule of the decomposition table on many calls of its overload, beside eager and beside torch's rule."""
