"""Judges a drawn program, or a pair of related programs, on one subject, and records what the compiler did."""
