"""Tests of capture: bytecode, values, guards, graph breaks."""
