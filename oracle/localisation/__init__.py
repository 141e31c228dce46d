"""Localisation: says which stage, which part of it and which value of a program a compiler gets wrong first."""
