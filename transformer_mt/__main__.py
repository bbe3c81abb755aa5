"""Entry point of the program."""

from transformer_mt.system.launcher import end_with_launcher
from transformer_mt.system.process_settings import open_closed_streams
from transformer_mt.system.signals import end_at_once_on_sigint


def main() -> None:
    """Runs the program, after what must not wait for imports."""
    end_at_once_on_sigint()  # until the program handles it, and after
    open_closed_streams()  # before imports open files
    end_with_launcher()
    from transformer_mt.cli import program

    program.main()


if __name__ == "__main__":
    main()
