"""Entry point of the program."""

from transformer_mt.system.launcher import watch_launcher


def main() -> None:
    """Runs the program, after the only thing that must not wait for imports."""
    watch_launcher()
    from transformer_mt.cli import program

    program.main()


if __name__ == "__main__":
    main()
