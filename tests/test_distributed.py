"""Two processes with gloo on the CPU, and with NCCL where there are two GPUs: see ``distributed_programs.py``. They are
killed if one hangs."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
SECONDS = 240  # far more than it takes

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


def names() -> list[str]:
    text = (HERE / "distributed_programs.py").read_text()
    return [part.split("(")[0].strip() for part in text.split("@case\ndef ")[1:]]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return run(tmp_path_factory.mktemp("distributed"), "cpu")


def run(folder: Path, device: str, *names: str, again: bool = True) -> tuple[list[dict], list[str]]:
    """What failed in each process: {name of a program: the traceback}, and what it printed.

    ``again``: once more where a process has died of a signal. PyTorch's functional collectives over gloo spoil memory
    now and then (torch 2.13: a program without jit that makes three in turn dies within some ten thousand calls).
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running, logs, files = [], [], [folder / f"{rank}.json" for rank in range(2)]
    for rank, file in enumerate(files):
        file.unlink(missing_ok=True)
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   OMP_NUM_THREADS="1", JIT_STRICT="1", JIT_TEST_DISTRIBUTED=device,
                   PYTHONPATH=os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]))
        logs.append(open(folder / f"{rank}.log", "w+"))  # noqa: SIM115
        running.append(subprocess.Popen([sys.executable, str(HERE / "distributed_programs.py"), str(file), *names],
                                        env=env, stdout=logs[-1], stderr=subprocess.STDOUT))
    stop = time.monotonic() + SECONDS
    try:
        while any(p.poll() is None for p in running) and time.monotonic() < stop:
            if any(p.poll() for p in running):
                time.sleep(2)  # the other one has lost its partner
                break
            time.sleep(0.1)
    finally:
        died = any((p.poll() or 0) < 0 for p in running)
        for p in running:
            p.kill()
            p.wait()
    if died and again:
        return run(folder, device, *names, again=False)
    texts = []
    for log in logs:
        log.seek(0)
        texts.append(log.read())
        log.close()
    found = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    return found, texts


@pytest.mark.parametrize("name", names())
def test_program(outcome, name):
    check(outcome, name)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_recordings_with_nccl(tmp_path):
    programs = ("recordings_make_collectives_in_between", "one_rank_records_and_the_other_does_not",
                "a_collective_that_fails_behind_another", "waits_for_what_another_call_has_started")
    found = run(tmp_path, "cuda", *programs)
    for name in programs:
        check(found, name)


def check(outcome, name):
    found, texts = outcome
    for rank, (failed, text) in enumerate(zip(found, texts)):
        assert name not in failed, f"process {rank}:\n{failed[name]}"
        assert f"done {name}" in text, f"process {rank} did not come to its end:\n{text[-4000:]}"
