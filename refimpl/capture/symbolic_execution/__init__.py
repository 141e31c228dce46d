"""Symbolic execution of frames: the domain whose values stand for objects, calls of the program's objects, inlining."""
