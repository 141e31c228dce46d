"""Rules for calls of single functions and classes, one module for each subject; `rules` says what a rule is."""
