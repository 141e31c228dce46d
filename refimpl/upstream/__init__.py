"""Functions with upstream's names and signatures, for PyTorch's own tests. No other package of refimpl depends on them."""
