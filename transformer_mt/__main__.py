"""Entry point of `python -m transformer_mt`."""

from transformer_mt.cli.program import main

if __name__ == "__main__":
    main()
