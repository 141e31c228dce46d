"""Tests of tracing: make_fx, fake kernels, layouts, operators that take functions."""
