"""The kernel cache: a content-addressed store of bytes, one folder per user, safe for many processes.

An entry is one file, ``<key>``, holding the payload and a 40-byte trailer (magic, SHA-256 of the payload). A shared
object keeps loading with a trailer behind it, so the very file whose digest was checked is the one handed to
``dlopen``.

Safety. The folder has mode 0700 and has to belong to the user, files are written under another name and renamed, the
owner and the digest are checked before anything is returned, and a file that fails a check is removed and reported as
absent, so that it is rebuilt. A folder that cannot be used gives one warning and a private temporary folder, which is
removed when the process ends.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import warnings

from jit import config

_MAGIC = b"jitcache"
_TRAILER = len(_MAGIC) + hashlib.sha256().digest_size
_lock = threading.Lock()
_folders: dict[str, str] = {}


def key(*parts: str | bytes) -> str:
    """A key for what the parts say: 64 hexadecimal digits. Parts are length-prefixed, so ("ab", "c") and ("a", "bc")
    differ."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def directory() -> str:
    """The folder in use, made on the first call: ``<config.cache_dir>/kernels``, or a private temporary one when that
    cannot be used."""
    base = config.cache_dir
    folder = _folders.get(base)
    if folder is None:
        with _lock:
            folder = _folders.get(base)
            if folder is None:
                folder = _folders[base] = _open_folder(base)
    return folder


def get(key: str) -> bytes | None:
    """The payload stored under ``key``; None when there is none, or when it fails a check (it is then removed)."""
    data = _read(os.path.join(directory(), key))
    return None if data is None else data[:-_TRAILER]


def file(key: str) -> str | None:
    """The path of a checked entry, for ``dlopen``; the payload is followed by a trailer. None as for :func:`get`."""
    path = os.path.join(directory(), key)
    return None if _read(path) is None else path


def put(key: str, data: bytes) -> str:
    """Store ``data`` under ``key``, replacing what was there in one step, and return the entry's path.

    A store that cannot be written any more (a full disk, a folder taken away) moves to a temporary folder with a
    warning. Raises OSError when that fails too.
    """
    try:
        return _write(directory(), key, data)
    except OSError as error:
        base = config.cache_dir
        with _lock:
            _folders[base] = _temporary_folder(base, error)
        return _write(_folders[base], key, data)


def remove(key: str) -> None:
    """Forget an entry; nothing happens when there is none."""
    try:
        os.unlink(os.path.join(directory(), key))
    except OSError:
        pass


def _write(folder: str, key: str, data: bytes) -> str:
    path = os.path.join(folder, key)
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
            f.write(_MAGIC)
            f.write(hashlib.sha256(data).digest())
        os.replace(temporary, path)
    except BaseException:  # an interrupt leaves no file behind either
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    return path


def _read(path: str) -> bytes | None:
    """The whole file, trailer and all, if it is a regular file of ours with a right digest."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as f:
        info = os.fstat(handle)
        data = f.read() if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() else b""
    view = memoryview(data)
    if (len(data) >= _TRAILER and view[-_TRAILER:-32] == _MAGIC
        and hashlib.sha256(view[:-_TRAILER]).digest() == view[-32:]):
        return data
    try:
        os.unlink(path)
    except OSError:
        pass
    return None


def _open_folder(base: str) -> str:
    folder = os.path.join(base, "kernels")
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
        handle, probe = tempfile.mkstemp(prefix=".new-", dir=folder)
        os.close(handle)
        os.unlink(probe)
        return folder
    except OSError as error:
        return _temporary_folder(base, error)


def _temporary_folder(base: str, error: OSError) -> str:
    folder = tempfile.mkdtemp(prefix="jit-")
    warnings.warn(
        f"the kernel cache in {base} cannot be used ({error}); compiled kernels go to {folder} and are lost when this "
        "process ends. "
        "Set JIT_CACHE_DIR to a folder that you own and can write to.",
        RuntimeWarning,
        stacklevel=3,
    )
    atexit.register(_remove_folder, folder, os.getpid())
    return folder


def _remove_folder(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
