"""Runs a check for each of many names, every one in a process of its own: a crash or a hang is a finding like any
other."""

import os
import pickle
import select
import signal
import time
import traceback


def run(names, check, jobs: int, timeout: float, report, until: float | None = None) -> dict:
    """name -> what ``check(name)`` returned, a list of texts, each a finding. ``report(name, findings)`` is called as
    they come in.

    ``until`` (as ``time.time()`` tells it): no check is begun after that, and the names that are left are not in the
    result.
    """
    waiting, running, done = list(reversed(names)), {}, {}
    while waiting or running:
        if until is not None and time.time() > until:
            waiting.clear()
        while waiting and len(running) < jobs:
            name = waiting.pop()
            running.update([_start(name, check)])
        ready = select.select([pipe for pipe in running], [], [], 0.5)[0]
        for pipe in list(running):
            name, process, begun, chunks = running[pipe]
            if pipe in ready:
                chunk = os.read(pipe, 1 << 16)
                if chunk:
                    chunks.append(chunk)
                    continue
                done[name] = _result(process, chunks)
            elif time.time() - begun > timeout:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                done[name] = [f"takes more than {timeout:.0f} s"]
            else:
                continue
            os.close(pipe)
            del running[pipe]
            report(name, done[name])
    return done


def _start(name, check):
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        return read, (name, process, time.time(), [])
    status = 1
    try:
        os.close(read)
        try:
            found = check(name)
        except BaseException:
            found = ["the check itself failed: " + traceback.format_exc()]
        with os.fdopen(write, "wb") as out:
            pickle.dump(found, out)
        status = 0
    finally:
        os._exit(status)


def _result(process, chunks) -> list:
    status = os.waitpid(process, 0)[1]
    if status == 0:
        return pickle.loads(b"".join(chunks))
    number = os.waitstatus_to_exitcode(status)
    return [f"the process died of {signal.Signals(-number).name}" if number < 0 else f"the process ended with {number}"]
