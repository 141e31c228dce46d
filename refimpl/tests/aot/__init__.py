"""Tests of ahead-of-time compilation: joint graphs, code around them, what eager shows of a program."""
