"""The `dynamic_shapes` argument of export, and the range constraints of an exported program."""
