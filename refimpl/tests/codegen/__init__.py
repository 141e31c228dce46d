"""Tests of the Triton code generator."""
