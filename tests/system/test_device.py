"""Devices, precisions, and settings of PyTorch that are restored."""

from pathlib import Path

import pytest
import torch
from conftest import refuses

from transformer_mt.errors import DeviceError
from transformer_mt.system import device, private_torch
from transformer_mt.system.device import choose_device, choose_precision, compute_settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("tf32", [True, False])
def test_compute_settings_are_restored(monkeypatch, tf32):
    """On CUDA they hold inside only, after an error too; a CPU needs none, and asking sets none."""

    def settings() -> tuple[bool, str]:
        return torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()

    before = settings()
    inside = (False, "high" if tf32 else "highest")
    assert before != inside
    with compute_settings(CUDA, tf32):
        assert settings() == inside
    with pytest.raises(ZeroDivisionError), compute_settings(CUDA, tf32):
        1 / 0  # noqa: B018
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == choose_device("cuda") == CUDA
    with compute_settings(CPU, tf32=True):
        assert settings() == before


def test_compute_settings_of_a_program_with_the_newer_setting():
    """It makes the older one unreadable. Sabotage: do not catch that; restore that alone."""
    matmul, others = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = matmul.fp32_precision, others.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        with compute_settings(CUDA, tf32=False):
            assert torch.get_float32_matmul_precision() == "highest"
        assert (matmul.fp32_precision, others.fp32_precision) == ("tf32", before[1])
    finally:
        torch.set_float32_matmul_precision("highest")
        matmul.fp32_precision, others.fp32_precision = before


def test_devices(monkeypatch):
    """`auto` is CUDA where available; what is absent is an error."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    refuses(DeviceError, "finds no CUDA device; use cpu or auto", choose_device, "cuda")


@pytest.mark.parametrize(
    ("maker", "instructions", "bf16"),
    [
        ("GenuineIntel", ["AVX512_BF16", "AMX"], True),
        ("GenuineIntel", ["AVX512_BF16"], False),
        ("AuthenticAMD", ["AVX512_BF16"], True),
        ("AuthenticAMD", [], False),
    ],
)
def test_precisions(monkeypatch, maker, instructions, bf16):
    """`auto` is bf16 where it is fast, and what a resumed run recorded."""
    monkeypatch.setattr(device, "cpu_maker", lambda: maker)
    monkeypatch.setattr(device, "cpu_bf16_instructions", lambda: instructions)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **kw: bf16 or any(kw.values()))
    assert choose_precision("auto", CPU, None) == ("bf16" if bf16 else "fp32")
    assert choose_precision("auto", CUDA, None) == ("bf16" if bf16 else "fp16")
    assert choose_precision("auto", CPU, "fp32") == choose_precision("fp32", CPU, "bf16") == "fp32"
    assert choose_precision("fp16", CUDA, None) == "fp16"
    message = "fp16: this cpu device does not support it; "
    refuses(DeviceError, f"precision = {message}use auto", choose_precision, "fp16", CPU, None)
    message = "fp16: .* support it; resume it where it was trained"
    refuses(DeviceError, message, choose_precision, "auto", CPU, "fp16")


def test_out_of_memory_is_recognised():
    """Python's error, CUDA's error, and the message of the CPU's allocator."""
    caught = refuses(RuntimeError, "", torch.empty, 2**60, dtype=torch.uint8)
    texts = ["CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x", "CUDA error: out of memory\n"]
    texts += ["backend='inductor' raised:\nCUDA out of memory. x", "Cannot allocate memory (12)"]
    errors = [MemoryError(), torch.OutOfMemoryError(), caught, *map(RuntimeError, texts)]
    assert all(map(device.is_out_of_memory, errors))
    others = [RuntimeError("shape mismatch"), ValueError("Cannot allocate memory")]
    assert not any(map(device.is_out_of_memory, others))


@pytest.mark.parametrize("maker", ["AuthenticAMD", "unknown"])
def test_the_maker_of_the_cpu(monkeypatch, maker):
    monkeypatch.setattr(Path, "exists", lambda path: maker != "unknown")
    monkeypatch.setattr(Path, "read_text", lambda path: f"processor\t: 0\nvendor_id\t: {maker}\n")
    assert device.cpu_maker.__wrapped__() == maker


@pytest.mark.parametrize("text", ["1000000\n", "max\n", "9223372036854771712"])
@pytest.mark.parametrize("group", ["", "job_7", "job_7/step_0"])
def test_a_control_group_limits_the_memory_of_a_cpu(tmp_path, monkeypatch, group, text):
    """If it has a limit, that of a container (the root), of a job, or of a part of it."""
    (tmp_path / "own").write_text("0::/job_7/step_0\n")
    (tmp_path / group).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(device, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(device, "_GROUPS", tmp_path)
    whole = device.total_memory(CPU)
    (tmp_path / group / "memory.max").write_text(text)
    assert device.total_memory(CPU) == (1_000_000 if text == "1000000\n" else whole)


def test_what_the_machine_has(monkeypatch):
    for has_avx512, has_amx, names in ((1, 0, ["AVX512_BF16"]), (0, 1, ["AMX"])):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has_avx512: has)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has=has_amx: has)
        assert private_torch.cpu_bf16_instructions() == names
