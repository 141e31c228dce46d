"""What `dynamic_shapes` says, and what holds of the sizes of an exported program."""
