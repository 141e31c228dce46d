"""Tests of the partitioners and of passes over joint graphs."""
