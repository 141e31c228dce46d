"""What a finding is: which bug it counts as, which part of the compiler and which rung it comes from, and its script."""
