"""Ahead-of-time autograd: functional forward and backward graphs of a function, and the code around them that eager needs."""
