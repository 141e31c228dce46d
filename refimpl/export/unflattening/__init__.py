"""Makes submodules from a flat exported graph: the tree of calls, the values between calls, and a graph per call."""
