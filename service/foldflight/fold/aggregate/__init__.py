"""Aggregate functions: accumulators by slot, with one implementation for each mode.

`fold.py` is the evaluator. `groups_accumulator.py` has the interface of one call's accumulators. `interpreted.py` calls
the author's methods row by row, `vectorised.py` calls the vectorised methods, `bundled.py` calls `fold_bundle`, and
`viewed.py` has the entries of views that rows use. `counted.py` keeps rows, and `distinct.py` keeps them in a view. An
accelerator may provide other implementations. `states.py` and `records.py` convert accumulators to states and back.
"""
