"""What SIGINT and SIGTERM do before, in and after the program."""

import signal
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from transformer_mt import __main__ as entry_point
from transformer_mt.errors import Interrupted
from transformer_mt.system.signals import catch_stop_signals, handle_signals


def test_ctrl_c_before_and_after_the_program(monkeypatch):
    """Ends the process, while libraries are imported or threads are awaited, unless ignored."""
    seen = []

    def look(*_: object, **__: object) -> None:
        seen.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr(entry_point, "end_with_launcher", look)
    monkeypatch.setattr("transformer_mt.cli.program.app", look)
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler, outside in (
            (signal.default_int_handler, signal.SIG_DFL),
            (signal.SIG_IGN, signal.SIG_IGN),
        ):
            signal.signal(signal.SIGINT, handler)
            entry_point.main()
            look()
            first, inside, last = seen
            assert first == last == outside
            with pytest.raises(Interrupted):
                inside(signal.SIGINT, None)
            seen.clear()
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_that_stop():
    """The first is noted, the second raises; all is restored, and nothing changed in a thread."""
    numbers, handler = (signal.SIGINT, signal.SIGTERM), Mock()

    def handled_in_thread() -> object:
        with handle_signals(signal.SIG_DFL):
            return signal.getsignal(signal.SIGINT)

    with handle_signals(handler), ThreadPoolExecutor(1) as pool:
        with catch_stop_signals() as request:
            signal.raise_signal(signal.SIGTERM)
            assert request.signum == signal.SIGTERM
            with pytest.raises(Interrupted) as stop:
                signal.raise_signal(signal.SIGINT)
        assert stop.value.exit_code == 130
        assert [signal.getsignal(number) for number in numbers] == [handler, handler]
        assert pool.submit(handled_in_thread).result() is handler
