"""Finds the intermediate value or gradient of a program that a compiler first gets wrong."""
