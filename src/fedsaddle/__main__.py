"""`python -m fedsaddle`: the command line."""

from fedsaddle.cli import main

if __name__ == "__main__":
    main()
