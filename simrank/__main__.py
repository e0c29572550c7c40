"""`python -m simrank`, where the command is not on the path."""

from simrank.cli import main

main()
