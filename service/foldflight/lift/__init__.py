"""Lift functions: describe what a class does for one row by expressions that an engine can aggregate without Python.

Pure: it reads the source of authors' methods and knows no engine. `lift_text` is the JSON text that a server returns
for a call, `Lift` is its content, and `Plan` computes the states from sums, counts and extremes.
"""
