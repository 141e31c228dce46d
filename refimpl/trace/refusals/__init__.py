"""What eager refuses and fake kernels accept: dtypes and numbers that are not converted, memory that must not be written to."""
