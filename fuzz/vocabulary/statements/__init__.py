"""The grammar of programs, one level a file: shapes, tensors, statements by family, call plans, programs."""
