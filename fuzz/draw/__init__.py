"""Drawing a program: the source of random choices, the scene with its live values, inputs, and checks for undefined results."""
