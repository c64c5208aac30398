"""All that differs between versions of PySpark, and the names of PySpark that are not documented or newer than 3.5.

Each version may cost a page here. Other modules ask `facts` what the installed Spark can do.
"""
