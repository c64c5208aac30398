"""Aggregate functions: accumulators by slot, one set for each call, in whichever way they are folded.

`fold.py` is the evaluator. `accumulators.py` is what it asks of one call's accumulators: `interpreted.py` calls the
author's methods row by row, `vectorised.py` those for whole chunks, `counted.py` keeps rows; an accelerator may hand in
others. `states.py`, `records.py` and `migration.py` turn accumulators into states and back.
"""
