"""Rules for functions that take functions: control flow, checkpoints and autograd Functions. The functions become graphs of
their own.
"""
