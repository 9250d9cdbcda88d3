"""`python -m headrace.cli`: the same as the command `headrace`."""

from headrace.cli.main import main

main()
