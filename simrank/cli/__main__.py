"""`python -m simrank.cli`, where the command is not on the path."""

from simrank.cli import main

main()
