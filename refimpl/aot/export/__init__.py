"""Graphs of functions and modules without code around them, under the names that upstream gives these entry points."""
