"""The state of one attempt to capture a segment: graph, guards, side effects, and the values of the program's objects."""
