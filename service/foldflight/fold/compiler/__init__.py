"""From an author's class to machine code: what Python means by the code, or a reason why not. Needs numba."""
