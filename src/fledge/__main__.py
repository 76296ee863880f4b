"""`python -m fledge` is `fledge`."""

from fledge.cli import main

if __name__ == "__main__":  # a process that is started for a share of the work imports this module too
    main()
