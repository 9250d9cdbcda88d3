"""What users write with: applications, streams, topics and jobs, and the supervisor that runs them.

A pipeline is a Python file that makes an `App`, says which topics it reads (`app.stream`), and writes
functions that return DataFrames (`@app.job`). Nothing is opened when the file is imported: streams become
DataFrames when the supervisor calls the functions of the jobs, each of which becomes one streaming query.
"""
