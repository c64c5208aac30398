"""Expressions of scalar and table functions over rows. They keep no state between chunks.

A `Request` becomes `bound.BoundExpressions`, which open `expressions.OpenExpressions`. They have one
`evaluation.Evaluation` for each step: interpreted, vectorised or compiled.
"""
