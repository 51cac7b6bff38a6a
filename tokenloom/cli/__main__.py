"""`python -m tokenloom.cli`: the same as `tokenloom`."""

from tokenloom.cli import main

main(prog_name="tokenloom")
