"""What runs: the calling convention of the program around the compiled graphs."""
