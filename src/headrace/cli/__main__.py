"""`python -m headrace.cli`, for where the command `headrace` is not on the path."""

from headrace.cli.main import main

main()
