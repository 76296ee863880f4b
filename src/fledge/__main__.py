"""`python -m fledge` is `fledge`."""

from fledge.cli import main

main()
