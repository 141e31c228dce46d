"""refimpl: an independent, readable reimplementation of the road from a Python function to a kernel."""
