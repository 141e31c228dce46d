"""Tracing: run a function and record the aten overloads it calls as a graph."""
