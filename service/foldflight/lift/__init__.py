"""Lifts functions: what a class does for one row, as expressions that an engine can aggregate without Python.

Pure: it reads the source of authors' methods and knows no engine. `lift_text` is what a server or an embedding engine
tells about a call, `Lift` is that as a value, and `Plan` computes the states from sums, counts and extremes.
"""
