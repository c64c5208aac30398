"""Programs of scalar and table functions over rows. They keep no state between chunks.

A `Request` becomes a `bound.BoundProgram`, which opens a `program.OpenProgram`. It has one `mapper.Mapper` for each
step: interpreted, vectorised or compiled.
"""
