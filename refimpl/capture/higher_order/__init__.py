"""Rules for functions that take functions: bodies of control flow, checkpoints and autograd functions as graphs of their own."""
