"""What is kept on disk: content-addressed stores of bytes in one folder per user, safe for many processes.

A store is a folder below ``config.cache_dir``: ``kernels`` holds binaries, ``entries`` compiled functions. What is kept
under a key is one file, holding the payload and a 40-byte trailer (magic, SHA-256 of the payload). A shared object
keeps loading with a trailer behind it, so the very file whose digest was checked is the one handed to ``dlopen``.

Safety. The folder has mode 0700 and has to belong to the user, files are written under another name and renamed, the
owner and the digest are checked before anything is returned, and a file that fails a check is removed and reported as
absent, so that it is rebuilt. A folder that cannot be used gives one warning and a private temporary folder, which is
removed when the process ends; what lies in it is still read if it can be. So is what lies in the folders of
``config.cache_below``, which are never written to.

All stores together are bounded by ``config.cache_size_mb``: what was not used for longest goes first. A use is noted by
the file's time, once an hour.
"""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator

from jit import config, telling

_MAGIC = b"jitcache"
_TRAILER = len(_MAGIC) + hashlib.sha256().digest_size
_NEW = ".new-"  # what files are called while they are written
_NOTED_S = 3600.0  # of a use
_ABANDONED_S = 3600.0  # after which a file that is still being written is not any more
_TRIMMED_EVERY = 256  # files that a process writes
_KEPT = 0.9  # of the limit, when it is passed
_lock = threading.Lock()
_told: set[str] = set()  # folders that cannot be used, of which the user knows


def key(*parts: str | bytes) -> str:
    """A key for what the parts say: 64 hexadecimal digits. Parts are length-prefixed, so ("ab", "c") and ("a", "bc")
    differ."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


class Store:
    """One kind of what is kept. A key may be in a group: "group/key"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folders: dict[str, str] = {}
        self.added: list[str] = []
        self.written = 0

    def directory(self) -> str:
        """The folder in use, made on the first call: ``<config.cache_dir>/<name>``, or a private temporary one when
        that cannot be used."""
        base = config.cache_dir
        folder = self.folders.get(base)
        if folder is None:
            with _lock:
                folder = self.folders.get(base)
                if folder is None:
                    folder = self.folders[base] = _open_folder(base, self.name)
        return folder

    def get(self, key: str) -> bytes | None:
        """The payload stored under ``key``; None when there is none, or when it fails a check (it is then removed)."""
        found = self._found(key)
        return None if found is None else found[1][:-_TRAILER]

    def file(self, key: str) -> str | None:
        """The path of a checked entry, for ``dlopen``; the payload is followed by a trailer. None as for ``get``."""
        found = self._found(key)
        return None if found is None else found[0]

    def put(self, key: str, data: bytes) -> str:
        """Store ``data`` under ``key``, replacing what was there in one step, and return the file's path.

        A store that cannot be written any more (a full disk, a folder taken away) moves to a temporary folder with a
        warning. Raises OSError when that fails too.
        """
        try:
            return self.put_there(key, data)
        except OSError as error:
            base = config.cache_dir
            with _lock:
                self.folders[base] = _temporary_folder(base, error)
            return _write(self.folders[base], key, data)

    def put_there(self, key: str, data: bytes) -> str:
        """The same for what is not worth a warning: raises OSError where it cannot be written."""
        path = _write(self.directory(), key, data)
        self.written += 1
        if self.written % _TRIMMED_EVERY == 0:
            trim()
        return path

    def remove(self, key: str) -> None:
        """Forget an entry; nothing happens when there is none."""
        _unlink(os.path.join(self.directory(), key))

    def add(self, folder: str) -> None:
        """Read also what is in a folder, in this process."""
        self.added.append(folder)

    def group(self, name: str, added_only: bool = False) -> list[str]:
        """The keys in a group, what was used last first. ``added_only``: of those that were added in this process."""
        found: dict[str, float] = {}
        for folder, _ in self._places() if not added_only else [(folder, False) for folder in self.added]:
            for file in _files(os.path.join(folder, name)):
                found.setdefault(f"{name}/{os.path.basename(file.path)}", file.used)
        return sorted(found, key=found.__getitem__, reverse=True)

    def _places(self) -> list[tuple[str, bool]]:
        """(folder, whether it is the user's own) of each place that is read."""
        own = self.directory()
        below = [os.path.join(base, self.name) for base in config.cache_below.split(os.pathsep) if base]
        usual = os.path.join(config.cache_dir, self.name)
        return [(own, True), *((folder, False) for folder in self.added + ([usual] if own != usual else []) + below)]

    def _found(self, key: str) -> tuple[str, bytes] | None:
        for folder, own in self._places():
            path = os.path.join(folder, key)
            data = _read(path, own)
            if data is not None:
                return path, data
        return None


kernels = Store("kernels")
entries = Store("entries")
STORES = (kernels, entries)
directory, get, file, put, remove = kernels.directory, kernels.get, kernels.file, kernels.put, kernels.remove


@dataclasses.dataclass(frozen=True)
class File:
    """One kept file: its path, its size in bytes, and when it was last used, in seconds of the epoch."""

    path: str
    size: int
    used: float


def _files(folder: str) -> Iterator[File]:
    """The kept files in a folder, in no order; none where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            for entry in found:
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode) and not entry.name.startswith(_NEW):
                    yield File(entry.path, info.st_size, info.st_mtime)
    except OSError:
        return


def _folders(store: Store) -> list[str]:
    """The folder of a store, and those of the groups in it."""
    top = store.directory()
    try:
        with os.scandir(top) as found:
            return [top, *(entry.path for entry in found if entry.is_dir(follow_symlinks=False))]
    except OSError:
        return [top]


def kept(store: Store) -> list[File]:
    """All files of a store in the user's own folder."""
    return [file for folder in _folders(store) for file in _files(folder)]


def trim(limit_mb: int | None = None) -> int:
    """Remove what was not used for longest, until the stores take no more than ``limit_mb`` megabytes (None:
    ``config.cache_size_mb``; 0: whatever there is), and what processes that died have left half written. Gives the
    number of bytes that were removed."""
    limit = (config.cache_size_mb if limit_mb is None else limit_mb) << 20
    for store in STORES:
        for folder in _folders(store):
            _remove_abandoned(folder)
    found = [file for store in STORES for file in kept(store)]
    total = sum(file.size for file in found)
    if total <= limit:
        return 0
    removed = 0
    for file in sorted(found, key=lambda file: file.used):
        if total - removed <= _KEPT * limit:
            break
        _unlink(file.path)
        removed += file.size
    for folder in _folders(entries)[1:]:
        try:
            os.rmdir(folder)  # where it is empty
        except OSError:
            pass
    return removed


def _remove_abandoned(folder: str) -> None:
    now = time.time()
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if entry.name.startswith(_NEW) and abs(now - entry.stat(follow_symlinks=False).st_mtime) > _ABANDONED_S:
                    _unlink(entry.path)
    except OSError:
        pass


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _write(folder: str, key: str, data: bytes) -> str:
    path = os.path.join(folder, key)
    home = os.path.dirname(path)
    if home != folder:
        try:
            os.mkdir(home, 0o700)
        except FileExistsError:
            pass
    handle, temporary = tempfile.mkstemp(prefix=_NEW, dir=home)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
            f.write(_MAGIC)
            f.write(hashlib.sha256(data).digest())
        os.replace(temporary, path)
    except BaseException:  # an interrupt leaves no file behind either
        _unlink(temporary)
        raise
    return path


def fill(folder: str, contents: dict[str, bytes]) -> None:
    """Make a folder that a store can read (``Store.add``), with these payloads under their keys. Raises OSError."""
    os.mkdir(folder, 0o700)
    for key, data in contents.items():
        if os.path.isabs(key) or ".." in key.split("/"):
            raise OSError(f"{key!r} is no key")
        _write(folder, key, data)


def _read(path: str, own: bool) -> bytes | None:
    """The whole file, trailer and all, if it is a regular file with a right digest, of ours, or, where the folder is
    not our own, one that only its owner can write."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with os.fdopen(handle, "rb") as f:
            info = os.fstat(handle)
            trusted = info.st_uid == os.geteuid() or not own and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            data = f.read() if stat.S_ISREG(info.st_mode) and trusted else b""
    except OSError:  # of a disk that cannot be read
        return None
    view = memoryview(data)
    if (len(data) >= _TRAILER and view[-_TRAILER:-32] == _MAGIC
        and hashlib.sha256(view[:-_TRAILER]).digest() == view[-32:]):
        if own and abs(time.time() - info.st_mtime) > _NOTED_S:
            try:
                os.utime(path)
            except OSError:
                pass
        return data
    if own:
        _unlink(path)
    return None


def _open_folder(base: str, name: str) -> str:
    folder = os.path.join(base, name)
    try:
        os.makedirs(base, mode=0o700, exist_ok=True)
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        info = os.lstat(folder)
        if not stat.S_ISDIR(info.st_mode):
            raise NotADirectoryError(f"{folder} is not a folder")
        if info.st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user")
        if stat.S_IMODE(info.st_mode) != 0o700:
            os.chmod(folder, 0o700)
        handle, probe = tempfile.mkstemp(prefix=_NEW, dir=folder)
        os.close(handle)
        os.unlink(probe)
        return folder
    except OSError as error:
        return _temporary_folder(base, error)


def _temporary_folder(base: str, error: OSError) -> str:
    folder = tempfile.mkdtemp(prefix="jit-")
    if base not in _told:
        _told.add(base)
        telling.warn(
            f"jit: the cache folder {base} cannot be used ({error}); what is compiled goes to {folder} and is lost "
            "when this process ends, so the next one compiles it again. "
            "Set JIT_CACHE_DIR to a folder that you own, can write to, and that has space left.", RuntimeWarning)
    atexit.register(_remove_folder, folder, os.getpid())
    return folder


def _remove_folder(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
