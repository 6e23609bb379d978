"""`python -m vaiom` is the `vaiom` command."""

from vaiom.cli.main import main

if __name__ == "__main__":
    main()
