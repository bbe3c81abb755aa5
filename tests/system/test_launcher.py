"""What ends a process with its launcher or with another process, and how long it waits."""

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import fork_server
import pytest
from conftest import command, refuses, write_config
from launch import free_port

from transformer_mt.errors import ConfigError, DeviceError, LostProcessError
from transformer_mt.system import launcher, processes

SCENARIO = Path(__file__).parent / "joined_process.py"
LOST = "error: another process has ended or is unreachable; run the same command again\n"
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "scaling.md"


def launched(port: int, rank: int = 0) -> dict[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    return {**os.environ, "MASTER_ADDR": "127.0.0.1", **{k: str(v) for k, v in names.items()}}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems kill no worker")
def test_a_launcher_killed_while_its_worker_starts(corpus_dir, tmp_path):
    """While the worker imports torch, which here takes longer than the test."""
    config = write_config(tmp_path, corpus_dir)
    (tmp_path / "torch.py").write_text(
        f"import time\nopen({str(tmp_path / 'imported')!r}, 'w').close()\ntime.sleep(600)\n"
    )
    path = os.pathsep.join((str(tmp_path), *sys.path))
    env = {**launched(free_port()), "PYTHONPATH": path}
    launcher = '"$@" & echo $!; until [ -e imported ]; do sleep 0.1; done; kill -9 $$'
    words = ["sh", "-c", launcher, "sh", *command("train", config, "--run", tmp_path / "run")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=env, cwd=tmp_path, **pipes) as process:
        worker = int(process.stdout.readline())
        try:
            process.communicate(timeout=120)  # until the worker has closed its stderr
        except subprocess.TimeoutExpired:
            os.kill(worker, signal.SIGKILL)
            raise


def test_what_variables_tell(monkeypatch):
    """A launcher sets both; one that is empty is missing."""
    for rank, size, expected in ("", 2, (0, 1)), (1, "", (0, 1)), (0, 1, (1, 1)), (2, 3, (1, 0)):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(size)}
        monkeypatch.setattr(os, "environ", {k: v for k, v in variables.items() if v})
        assert (launcher.is_launched(), launcher.is_main_process()) == expected
        if size == 1:
            launcher.require_single_process("init")
    for name in ("RANK", "WORLD_SIZE"):
        variables = {"RANK": "0", "WORLD_SIZE": "2", name: "x"}
        monkeypatch.setattr(os, "environ", variables)
        with pytest.raises(ConfigError, match=f"{name} = x is not a number: use torchrun"):
            assert launcher.is_main_process()
            launcher.require_single_process("init")
    os.environ["MASTER_PORT"] = ""
    message = "variable MASTER_PORT is missing: use torchrun"
    refuses(ConfigError, message, launcher.read_number, "MASTER_PORT")


def test_the_cpus_of_a_process(monkeypatch):
    """Fewer beside others of torchrun; macOS does not say which a process may use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(9), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert launcher.cpus_of_process() == 9
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert launcher.cpus_of_process() == 4
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert launcher.cpus_of_process() == 1


def test_a_restarted_process_sees_no_old_value(monkeypatch):
    """Several launchers, which count their restarts separately, share all values."""
    monkeypatch.setattr(os, "environ", launched(free_port()))
    limit = timedelta(seconds=10)
    store = launcher.connect_to_store(limit, serves=True)
    added = [store.add("a", 1)]
    for launchers, restarts in (("1", "1"), ("1", "1"), ("1", "2"), ("2", "3"), ("2", "4")):
        os.environ |= {"GROUP_WORLD_SIZE": launchers, "TORCHELASTIC_RESTART_COUNT": restarts}
        added.append(launcher.connect_to_store(limit).add("a", 1))
    assert added == [1, 1, 2, 1, 1, 2]


@pytest.mark.parametrize(("rank", "prefix"), [("0", ""), ("1", "process 1 of 2: ")])
def test_an_error_waits_for_that_of_the_main_process(monkeypatch, capsys, rank, prefix):
    """Then a launcher's signal ends it at once; else it names its process."""
    handlers, end = [], Mock(side_effect=SystemExit)
    monkeypatch.setattr(os, "environ", launched(1, int(rank)))
    monkeypatch.setattr(launcher, "exit_process", end)
    sleep = Mock(side_effect=lambda seconds: handlers.append(signal.getsignal(signal.SIGINT)))
    monkeypatch.setattr(launcher, "time", SimpleNamespace(sleep=sleep))
    refuses(SystemExit, "", launcher.exit_with_error, "error: wrong")
    end.assert_called_once_with(2)
    assert capsys.readouterr().err == f"{prefix}error: wrong\n"
    assert handlers == [signal.SIG_DFL] * bool(prefix)


def test_errors_that_tell_of_a_lost_process(monkeypatch):
    joined = processes.Processes(0, 2, Mock())
    lost = ("Connection reset", "Timed out waiting", "Application timeout", "Broken pipe")
    for text in (*lost, "shapes differ"):
        error = Mock(side_effect=RuntimeError(text))
        monkeypatch.setattr("torch.distributed.all_gather_object", error)
        monkeypatch.setattr(launcher, "SECONDS_TO_END", 0.0)
        refuses(LostProcessError if text in lost else RuntimeError, "", joined.gather, 1)


def test_too_few_gpus(monkeypatch):
    monkeypatch.setattr(os, "environ", launched(1, rank=1))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    message = "^process 1 of this machine has no GPU: there are 1; lower --nproc-per-node$"
    with pytest.raises(DeviceError, match=message), processes.join_processes("cuda"):
        pass


@pytest.mark.parametrize("rank", [0, 1])
def test_one_machine_without_a_gpu(monkeypatch, rank):
    """All would wait ten minutes for it. Sabotage: let each choose its device alone."""
    monkeypatch.setattr(os, "environ", launched(1, rank))
    monkeypatch.setattr(processes, "_choose_gpu", lambda: None)
    devices = {"device of 0": b"cuda", "device of 1": b"cpu"}
    store = SimpleNamespace(get=devices.__getitem__, set=lambda name, value: None)
    monkeypatch.setattr(launcher, "connect_to_store", lambda limit, serves: store)
    own, message = ("cuda", "cpu")[rank], "^process 1 uses cpu, process 0 uses cuda; check the GPUs"
    with pytest.raises(DeviceError, match=message), processes.join_processes(own):
        pass


def test_a_process_that_is_lost(tmp_path):
    """The other ends and says so, if it is killed or no longer answers."""
    started = {}
    for scenario in ("killed", "stopped"):  # at once, as they wait for seconds
        port, words = free_port(), [sys.executable, SCENARIO, scenario]
        with (tmp_path / "out").open("a") as out, (tmp_path / scenario).open("w") as err:
            streams = {"stdout": out.fileno(), "stderr": err.fileno()}
            envs = [launched(port, rank) for rank in (0, 1)]
            started[scenario] = [fork_server.start(words, env=env, **streams) for env in envs]
    for scenario, (survivor, lost) in started.items():
        survivor.join(120)
        lost.kill()
        assert survivor.exitcode == 2, scenario
        assert (tmp_path / scenario).read_text() == LOST
    assert (tmp_path / "out").read_text() == ""


def test_the_limit_is_documented():
    [minutes] = re.findall(r"at most (\d+) minutes", DOCUMENTATION.read_text())
    assert timedelta(minutes=int(minutes)) == processes.TIMEOUT
