"""Rules for calls of particular functions and classes, one module for each subject. `rule_table` defines what a rule is."""
