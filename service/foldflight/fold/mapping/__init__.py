"""Programs of scalar and table functions over rows; no state is kept between chunks.

Request > bound.BoundProgram > program.OpenProgram > one Mapper for each step: interpreted, vectorised, compiled
"""
