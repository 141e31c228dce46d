"""Finds the step of torch's compiler that first makes a graph wrong, by running the graph before and after each step."""
