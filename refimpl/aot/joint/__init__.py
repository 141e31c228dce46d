"""The joint graph: a program and its backward traced into one graph, and what is known of the gradients in it."""
