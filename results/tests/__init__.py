"""Tests of results: our own code, never PyTorch's."""
