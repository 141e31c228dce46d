"""Tests of export, archives and unflattened modules."""
