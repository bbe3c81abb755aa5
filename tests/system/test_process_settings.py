"""Settings of the process: standard streams that are closed or lost, memory, and threads."""

import io
import logging
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from conftest import command

from transformer_mt import __main__ as entry_point
from transformer_mt.cli import program
from transformer_mt.errors import Interrupted
from transformer_mt.system.process_settings import (
    allow_any_text,
    catch_stop_signals,
    configure_libraries,
    cpus_of_process,
    handle_signals,
)


@pytest.mark.parametrize(
    ("words", "closed", "code", "message"),
    [
        (("config", "optim.eps"), ">&-", 2, "error: output: Bad file descriptor\n"),
        (("config", "optim.eps"), "<&- >&- 2>&-", 2, ""),
        (("translate", "RUN", "-q"), "<&-", 0, ""),
    ],
)
def test_a_closed_stream(untrained_run, words, closed, code, message):
    """A closed stdout is an error of one line; a closed stdin is empty."""
    line = " ".join(command(*words)).replace("RUN", str(untrained_run))
    done = subprocess.run(["bash", "-c", f"{line} {closed}"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (code, b"", message)


def test_any_file_name_is_printed(tmp_path, monkeypatch):
    """Sabotage: leave stdout as Python opens it."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    name = f"{tmp_path}/caf\udce9 é.svg"
    words = command("plot", "schedule", "configs/sample.toml", "-o", name)
    done = subprocess.run(words, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, os.fsencode(name) + b"\n", b"")


@pytest.mark.parametrize(
    ("encoding", "errors", "expected"),
    [
        ("utf-8", "strict", b"caf\xe9 \xc3\xa9"),
        ("ascii", "surrogateescape", b"caf\xe9 \xc3\xa9"),
        ("ascii", "replace", b"caf? ?"),
    ],
)
def test_the_encoding_of_stdout(monkeypatch, encoding, errors, expected):
    """UTF-8 in any locale, or as the user wants it."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding, errors)
    monkeypatch.setattr("sys.stdout", stdout)
    allow_any_text()
    stdout.write("caf\udce9 é")
    stdout.flush()
    assert stdout.buffer.getvalue() == expected


def test_ctrl_c_while_typer_builds_the_commands(call, monkeypatch):
    monkeypatch.setattr(program, "app", Mock(side_effect=KeyboardInterrupt))
    assert call("config") == (130, b"", "")


@pytest.mark.parametrize(
    ("name", "value", "variable", "expected"),
    [
        ("PATH", "", "GOMP_SPINCOUNT", "1000"),
        ("GOMP_SPINCOUNT", "7", "GOMP_SPINCOUNT", "7"),
        ("OMP_WAIT_POLICY", "PASSIVE", "GOMP_SPINCOUNT", None),
        ("PATH", "", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256"),
        ("LRU_CACHE_CAPACITY", "9", "LRU_CACHE_CAPACITY", "9"),
        ("PATH", "", "TORCH_CPP_LOG_LEVEL", "FATAL"),
    ],
)
def test_variables_of_the_user_are_kept(monkeypatch, name, value, variable, expected):
    monkeypatch.setattr(os, "environ", {name: value})
    configure_libraries()
    assert os.environ.get(variable) == expected
    assert logging.getLogger("matplotlib").level == logging.ERROR


def test_the_cpus_of_a_process(monkeypatch):
    """Fewer beside others of torchrun; macOS does not say which a process may use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(9), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert cpus_of_process() == 9
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cpus_of_process() == 4
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert cpus_of_process() == 1


def test_variables_are_set_before_torch_is_imported():
    """As GNU OpenMP reports, which torch loads."""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    words = command("translate", "nowhere")
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr


def test_ctrl_c_before_and_after_the_program(monkeypatch):
    """Ends the process, while libraries are imported or threads are awaited, unless ignored."""
    seen = []

    def look(*_: object) -> None:
        seen.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr(entry_point, "end_with_launcher", look)
    monkeypatch.setattr("transformer_mt.cli.program.main", look)
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler, outside in (
            (signal.default_int_handler, signal.SIG_DFL),
            (signal.SIG_IGN, signal.SIG_IGN),
        ):
            signal.signal(signal.SIGINT, handler)
            entry_point.main()
            look()
            assert seen == [outside, handler, outside]
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
