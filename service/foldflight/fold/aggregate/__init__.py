"""Aggregate functions: accumulators by slot, with one implementation for each mode.

`fold.py` is the evaluator. `groups_accumulator.py` has the interface of one call's accumulators. `interpreter.py` calls
the author's methods row by row, `vectorised_accumulators.py` calls the vectorised methods, `bundle_accumulators.py`
calls `fold_bundle`, and `view_accumulators.py` has the entries of views that rows use. `row_multiset.py` keeps rows,
and `distinct.py` keeps them in a view. An accelerator may provide other implementations. `state_codecs.py` and
`record_layout.py` convert accumulators to states and back.
"""
