"""The symbolic domain: values stand for what is not known yet, operations on tensors become nodes of a graph."""
