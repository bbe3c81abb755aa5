"""Entry point of the program."""

import signal

from transformer_mt.system.launcher import end_with_launcher


def main() -> None:
    """Runs the program, after what must not wait for imports.

    Before and after that, Ctrl-C ends the process at once, without a traceback.
    """
    handler = signal.getsignal(signal.SIGINT)
    outside = signal.SIG_DFL if handler is signal.default_int_handler else handler
    signal.signal(signal.SIGINT, outside)
    end_with_launcher()
    from transformer_mt.cli import program

    signal.signal(signal.SIGINT, handler)
    try:
        program.main()
    finally:
        signal.signal(signal.SIGINT, outside)


if __name__ == "__main__":
    main()
