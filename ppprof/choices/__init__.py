"""What users can choose by name or number, on the command line, in a config and in the library.

The names and their checks, without the code that they select: parsing a command line or attaching
a profiler imports this package, and must import neither numpy nor polars.
"""
