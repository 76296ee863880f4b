"""`python -m fledge` is `fledge`."""

from fledge.cli import main

if __name__ == "__main__":
    main()
