"""What a program does to its inputs and what its outputs are, and the fakes, views and wrappers that the analysis works on."""
