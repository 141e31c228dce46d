"""Export by reading bytecode, and the signatures of submodules in it."""
