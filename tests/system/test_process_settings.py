"""The process: standard streams, closed or lost, its messages, signals, memory, and threads."""

import errno
import io
import logging
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import fork_server
import pytest
from conftest import command, refuses, write_config

from transformer_mt import __main__ as entry_point
from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.cli.program import main
from transformer_mt.errors import Interrupted
from transformer_mt.evaluation.evaluate import EvaluationReport, SystemOutput, format_reports
from transformer_mt.evaluation.run_comparison import format_rows
from transformer_mt.system import console, process_settings
from transformer_mt.system.console import ProgressBar, show_messages
from transformer_mt.system.signals import catch_stop_signals, handle_signals
from transformer_mt.text.test_sets import EvaluationSet
from transformer_mt.training.run_log import RunLog


def test_closed_streams_are_replaced_before_any_file_is_opened():
    """As by libffi, which newer versions keep open. Sabotage: import ctypes in launcher.py."""
    code = "import sys, transformer_mt.__main__; assert 'ctypes' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


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


def test_any_file_name_is_printed(copy_run, tmp_path, monkeypatch):
    """Sabotage: leave stdout as Python opens it."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    name = f"{tmp_path}/caf\udce9 é.svg"
    words = command("plot", "training", copy_run, "-o", name)
    done = subprocess.run(words, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, os.fsencode(name) + b"\n", b"")


@pytest.mark.parametrize(
    "options", [("utf-8",), ("ascii", "surrogateescape"), ("ascii", "replace")]
)
def test_the_encoding_of_stdout(monkeypatch, options):
    """UTF-8 in any locale, or as the user wants it."""
    stdout = io.TextIOWrapper(io.BytesIO(), *options)
    monkeypatch.setattr("sys.stdout", stdout)
    process_settings.allow_any_text()
    stdout.write("caf\udce9 é")
    stdout.flush()
    expected = b"caf? ?" if "replace" in options else b"caf\xe9 \xc3\xa9"
    assert stdout.buffer.getvalue() == expected


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
    process_settings.configure_libraries()
    assert os.environ.get(variable) == expected
    assert logging.getLogger("matplotlib").level == logging.ERROR


def test_variables_are_set_before_torch_is_imported():
    """As GNU OpenMP reports, which torch loads."""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    words = command("translate", "nowhere")
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr


@pytest.fixture(params=["closed", "full"])
def lost_stderr(request):
    """Gives the descriptor of a pipe whose reader has ended, or of a full disk."""
    if request.param == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, descriptor = os.pipe()
        os.close(reading)
    yield descriptor
    os.close(descriptor)


def test_work_goes_on_without_its_messages(corpus_dir, untrained_run, tmp_path, lost_stderr):
    """An error keeps its exit code. Sabotage: let SIGPIPE end the process; let a `print` raise."""
    config = write_config(tmp_path, corpus_dir, train__max_steps=2, valid__every=2)
    run_dir, source, out = tmp_path / "run", tmp_path / "in.de", tmp_path / "out.en"
    source.write_text("ab\ncd\n")
    for words, code in (
        (command("train", config, "--run", run_dir), 0),
        (command("translate", untrained_run, "--input", source), 0),
        (command("translate", "nowhere"), 2),
    ):
        with out.open("wb") as stdout:
            process = fork_server.start(words, stdout=stdout.fileno(), stderr=lost_stderr)
            process.join(60)
        assert process.exitcode == code, words
        if "--input" in words:
            assert out.read_text().count("\n") == 2
    assert (run_dir / "step-00000002").exists()


def test_a_bar_at_a_lost_terminal(monkeypatch):
    """Bars and messages are given up; what they tell of goes on."""
    lost = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(sys, "stderr", Mock(isatty=lambda: True, write=Mock(side_effect=lost)))
    process_settings.tolerate_lost_messages()
    show_messages()
    assert list(ProgressBar("reading", "lines", items=range(3))) == [0, 1, 2]
    with ProgressBar("translating", "lines", 2) as progress:
        progress.update(2)
    console.logger.warning("lost")
    assert sys.stderr.write("lost") == 4


def test_items_print_lines_without_a_terminal(capsys, monkeypatch):
    """Long text takes minutes to prepare. Sabotage: leave `__iter__` to tqdm."""
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0)
    show_messages()
    assert list(ProgressBar("reading", "pairs", 3, items="abc")) == [*"abc"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"reading: {n} of 3 pairs" for n in (1, 2, 3)]


HOSTILE = "a\x1b[2J\x9bb\nc\x7f"
SHOWN = "a\\x1b[2J\\x9bb\\x0ac\\x7f"


def test_terminals_obey_no_message(tmp_path, capsys, monkeypatch):
    """Names, samples and errors show control characters; other characters stay."""
    assert console.escape_controls("Grüße, 世界\u3000\U0001f600") == "Grüße, 世界\u3000\U0001f600"
    show_messages()
    with RunLog(tmp_path, Progress()) as log:
        console.logger.info("  hypothesis %s", HOSTILE)
        log.note(f"command: {HOSTILE}")
    assert f"  hypothesis {SHOWN}\n" in capsys.readouterr().err
    assert (tmp_path / "train.log").read_text().count(SHOWN + "\n") == 2
    output, test_set = SystemOutput([HOSTILE], "name"), EvaluationSet("test", None, [["x"]])
    report = EvaluationReport(test_set, output, [], None, [])
    assert f"hypothesis  {SHOWN}\n" in format_reports([report], samples=1)
    assert SystemOutput([], HOSTILE).describe() == SHOWN
    assert SHOWN in format_rows([[{"run": HOSTILE}]], "text")
    monkeypatch.setattr(sys, "argv", ["transformer-mt", "translate", HOSTILE])
    refuses(SystemExit, "2", main)
    assert "error: a\\x1b[2J\\x9bb c\\x7f: no such run" in capsys.readouterr().err


def test_ctrl_c_before_and_after_the_program(monkeypatch):
    """Ends the process, while libraries are imported or threads are awaited, unless ignored."""
    seen = []

    def look(*_: object, **__: object) -> None:
        seen.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr(entry_point, "end_with_launcher", look)
    monkeypatch.setattr("transformer_mt.cli.program.app", look)
    before = signal.getsignal(signal.SIGINT)
    try:
        handlers = {signal.default_int_handler: signal.SIG_DFL, signal.SIG_IGN: signal.SIG_IGN}
        for handler, outside in handlers.items():
            signal.signal(signal.SIGINT, handler)
            entry_point.main()
            look()
            first, inside, last = seen
            assert first == last == outside
            refuses(Interrupted, "", inside, signal.SIGINT, None)
            seen.clear()
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_that_stop():
    """The first is noted, or replaces an error; the second raises; nothing changes in a thread."""
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
        for hides_errors, expected in (False, OSError), (True, Interrupted):
            with pytest.raises(expected), catch_stop_signals(hides_errors):
                signal.raise_signal(signal.SIGTERM)
                raise OSError
            with pytest.raises(OSError), catch_stop_signals(hides_errors):  # noqa: PT011
                raise OSError
        assert [signal.getsignal(number) for number in numbers] == [handler, handler]
        assert pool.submit(handled_in_thread).result() is handler
