"""Threads of ours beside the program's: they take rests, and garbage is collected in pieces meanwhile."""

import gc
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from jit import turns
from jit.codegen import toolchain
from jit.frame import writer


class Owner:
    pass


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    yield before
    assert gc.get_threshold() == before


def computing(stop):
    while not stop.is_set():
        sum(range(1000))


def test_a_thread_rests_for_longer_than_it_works_while_the_program_computes(thresholds):
    shares = {}

    def work(computed):
        with turns.beside():
            begin = time.perf_counter()
            while time.perf_counter() - begin < 0.5:
                turns.point()
            shares[computed] = time.thread_time() / (time.perf_counter() - begin)

    for computed in (False, True):
        stop = threading.Event()
        program = threading.Thread(target=computing, args=(stop,))
        worker = threading.Thread(target=work, args=(computed,))
        if computed:
            program.start()
        worker.start()
        worker.join()
        stop.set()
        if computed:
            program.join()
    assert shares[True] < 0.45 and shares[True] < shares[False]
    assert not turns._paces


def test_rests_are_in_proportion_to_what_was_computed(monkeypatch):
    rests = []
    monkeypatch.setattr(turns.Pace, "program_computes", lambda self: True)
    monkeypatch.setattr(turns.time, "sleep", rests.append)
    with turns.beside():
        for seconds in (0.0, 0.01, 0.2):
            end = time.thread_time() + seconds
            while time.thread_time() < end or time.perf_counter() < turns._paces[threading.get_ident()].until:
                pass
            turns.point()
        with turns.hurried():
            while time.perf_counter() < turns._paces[threading.get_ident()].until:
                pass
            turns.point()
    small, middle, large, hurried = rests
    assert turns.SLICE_S <= small < middle and 0.01 <= middle <= large == turns.LONGEST_REST_S and hurried == 0.0


def test_garbage_is_collected_in_pieces_while_any_thread_works(thresholds):
    inside, go = threading.Event(), threading.Event()

    def other():
        with turns.beside():
            inside.set()
            go.wait(60)

    thread = threading.Thread(target=other)
    with turns.beside():
        ours = gc.get_threshold()
        assert ours[0] > 1 << 20 and ours[1:] == thresholds[1:]
        thread.start()
        assert inside.wait(60)
    assert gc.get_threshold() == ours  # the other one works still
    counts = []
    gc.callbacks.append(lambda phase, info: counts.append(info["generation"]) if phase == "start" else None)
    try:
        with turns.beside():
            kept = []
            for _ in range(4 * turns.PIECE):
                kept.append([])
                turns.point()
        assert counts.count(0) >= 2 and set(counts) == {0}
    finally:
        gc.callbacks.pop()
        go.set()
        thread.join()


def test_what_the_program_sets_meanwhile_stays(thresholds):
    try:
        with turns.beside():
            gc.set_threshold(123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*thresholds)


def test_what_is_written_to_disk_is_written_beside_the_program(monkeypatch):
    made, seen, owner = writer.Writer(), [], Owner()
    monkeypatch.setattr(writer, "QUIET_S", 0.01)
    done = threading.Event()

    def job(alive):
        seen.append((alive, threading.get_ident() in turns._paces))
        done.set()

    made.add(job, owner, "owner")
    assert done.wait(60) and seen == [(owner, True)]
    monkeypatch.setattr(writer, "QUIET_S", 1000.0)  # the end of the process does not wait, nor rest
    made.add(job, owner, "owner")
    assert made.finish() and seen[1:] == [(owner, False)]


@pytest.mark.skipif(not shutil.which("nice"), reason="no command nice")
def test_the_compiler_comes_behind_the_program(monkeypatch):
    def priority():
        command = [*toolchain._behind(), sys.executable, "-c", "import os; print(os.nice(0))"]
        return int(subprocess.run(command, capture_output=True, check=True).stdout)

    assert priority() == os.nice(0)
    monkeypatch.setattr(turns, "here", lambda: True)
    assert priority() == min(os.nice(0) + 10, 19)
