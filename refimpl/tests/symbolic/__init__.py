"""Tests of symbolic sizes: expressions, guards, the shape environment."""
