"""Messages: the work does not depend on them, and terminals do not obey them."""

import errno
import os
import sys
from unittest.mock import Mock

import fork_server
import pytest
from conftest import command, write_config

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.cli.program import main
from transformer_mt.evaluation.evaluate import EvaluationReport, SystemOutput, format_reports
from transformer_mt.evaluation.run_comparison import format_rows
from transformer_mt.system.console import ProgressBar, escape_controls, logger, show_messages
from transformer_mt.system.process_settings import tolerate_lost_messages
from transformer_mt.text.test_sets import EvaluationSet
from transformer_mt.training.run_log import RunLog


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
    """All of a translation and of a training; an error keeps its exit code.

    Sabotage: let SIGPIPE end the process; let one `print` raise.
    """
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
    tolerate_lost_messages()
    show_messages()
    assert list(ProgressBar("reading", "lines", items=range(3))) == [0, 1, 2]
    with ProgressBar("translating", "lines", 2) as progress:
        progress.update(2)
    logger.warning("lost")
    assert sys.stderr.write("lost") == 4


HOSTILE = "a\x1b[2J\x9bb\nc\x7f"
SHOWN = "a\\x1b[2J\\x9bb\\x0ac\\x7f"


def test_terminals_obey_no_message(tmp_path, capsys, monkeypatch):
    """Names, samples and errors show control characters; other characters stay."""
    assert escape_controls("Grüße, 世界\u3000\U0001f600") == "Grüße, 世界\u3000\U0001f600"
    show_messages()
    with RunLog(tmp_path, Progress()) as log:
        logger.info("  hypothesis %s", HOSTILE)
        log.note(f"command: {HOSTILE}")
    assert f"  hypothesis {SHOWN}\n" in capsys.readouterr().err
    assert (tmp_path / "train.log").read_text().count(SHOWN + "\n") == 2
    output, test_set = SystemOutput([HOSTILE], "name"), EvaluationSet("test", None, [["x"]])
    report = EvaluationReport(test_set, output, [], None, [])
    assert f"hypothesis  {SHOWN}\n" in format_reports([report], samples=1)
    assert SystemOutput([], HOSTILE).describe() == SHOWN
    assert SHOWN in format_rows([[{"run": HOSTILE}]], "text")
    monkeypatch.setattr(sys, "argv", ["transformer-mt", "translate", HOSTILE])
    with pytest.raises(SystemExit):
        main()
    assert "error: a\\x1b[2J\\x9bb c\\x7f: no such run" in capsys.readouterr().err
