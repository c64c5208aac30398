"""Expressions of scalar and table functions over rows. They keep no state between chunks.

A `Request` becomes `bound.BoundExpressions`, which open `expressions.OpenExpressions`. They have an
`evaluation.Scalar` (interpreted, vectorised or compiled) or a `table.TableInstance` for each step.
"""
