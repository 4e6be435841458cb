"""``python -m jit cache`` and ``python -m jit warm``."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jit import config, logs
from jit.runtime import cache


_CACHE_EXAMPLES = """examples:
  python -m jit cache ls                     which functions a new process need not compile
  python -m jit cache stats                  how much there is, and how much there may be
  python -m jit cache clear --entries        have all functions compiled again, with the kernels that there are
  JIT_CACHE_DIR=/scratch/jit python -m jit cache stats"""


def cache_command(arguments: Sequence[str]) -> int:
    """``python -m jit cache ls|stats|verify|clear``."""
    parser = argparse.ArgumentParser(
        prog="python -m jit cache", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"What is kept on disk, in {config.cache_dir} (JIT_CACHE_DIR): compiled functions, their kernels, "
                    "and what earlier\nprocesses have found out. It may all be removed at any time: it is made again."
                    "\n\n" + "\n".join(f"  {name:7s} {text}" for name, (_, text) in _CACHE.items()),
        epilog=_CACHE_EXAMPLES)
    parser.add_argument("what", choices=list(_CACHE), metavar="|".join(_CACHE), help="what to do, as above")
    parser.add_argument("--entries", action="store_true", help="clear: the compiled functions only, not their kernels")
    given = parser.parse_args(arguments)
    return _CACHE[given.what][0](given)


def _list(given: argparse.Namespace) -> int:
    from jit.frame import stored  # late: a room, which an unknown PyTorch may not let load

    rows = []
    for file in sorted(cache.kept(cache.entries), key=lambda file: -file.used):
        data = cache.entries.get(_key(file.path))
        try:
            header = stored.header_of(data or b"")
        except Exception as error:  # of another version, or damaged
            rows.append((f"(cannot be read: {type(error).__name__})", "", file))
            continue
        rows.append((header.name, ", ".join(device for device in header.devices), file))
    for name, devices, file in rows:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.used))
        print(f"{used}  {file.size / 1024:8.0f} KiB  {devices:12s}  {name}  {_key(file.path)[:12]}")
    if not rows:
        print(f"nothing is kept in {cache.entries.directory()}")
    return 0


def _key(path: str) -> str:
    return os.path.join(os.path.basename(os.path.dirname(path)), os.path.basename(path))


def _stats(given: argparse.Namespace) -> int:
    total = 0
    for store in cache.STORES:
        files = cache.kept(store)
        size = sum(file.size for file in files)
        total += size
        print(f"{store.name:8s}  {len(files):6d} files  {size / 2**20:9.1f} MiB  {store.directory()}")
    print(f"together  {total / 2**20:.1f} MiB of {config.cache_size_mb} MiB (JIT_CACHE_SIZE_MB)")
    return 0


def _verify(given: argparse.Namespace) -> int:
    """Damaged files are removed as they are found."""
    damaged = 0
    for store in cache.STORES:
        top = store.directory()
        for file in cache.kept(store):
            if store.get(os.path.relpath(file.path, top)) is None:
                damaged += 1
                print(f"removed, since it was damaged: {file.path}")
    print(f"{damaged} damaged file{'s'[:damaged != 1]}: what was in them is compiled again when it is needed" if damaged
          else "all files are whole")
    return 1 if damaged else 0


def _clear(given: argparse.Namespace) -> int:
    stores = (cache.entries,) if given.entries else cache.STORES
    removed = 0
    for store in stores:
        for file in cache.kept(store):
            Path(file.path).unlink(missing_ok=True)
            removed += file.size
    cache.trim()
    print(f"removed {removed / 2**20:.1f} MiB")
    return 0


_CACHE = {
    "ls": (_list, "the compiled functions that are kept, the newest first"),
    "stats": (_stats, "how much there is of everything"),
    "verify": (_verify, "read all files, and remove those that are damaged; exit status 1 if there are any"),
    "clear": (_clear, "remove everything"),
}


_WARM_USAGE = """usage: python -m jit warm SCRIPT [ARGUMENTS]

Runs a script as `python SCRIPT ARGUMENTS` would, and keeps on disk what is compiled in it, so that later runs of it
begin at once. Says what was kept, and what could not be and why.

example:
  python -m jit warm serve.py --once"""


def warm_command(arguments: Sequence[str]) -> int:
    """``python -m jit warm SCRIPT [ARGUMENTS]``."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_WARM_USAGE)
        return 0 if arguments else 2
    from jit.frame import writer  # late: a room, which an unknown PyTorch may not let load

    writer.at_once = True
    before = {file.path for file in cache.kept(cache.entries)}
    said: list[str] = []
    logs.channel("cache").listener = said.append
    sys.argv = list(arguments)
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
    status = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    made = [file for file in cache.kept(cache.entries) if file.path not in before]
    print(f"kept {len(made)} compiled functions ({sum(file.size for file in made) / 2**20:.1f} MiB) in "
          f"{cache.entries.directory()}", file=sys.stderr)
    for text in dict.fromkeys(text for text in said if "not kept" in text):
        print(text, file=sys.stderr)
    return status
