"""Files that are replaced in one step: written under a temporary name, then renamed into place.

A crash or a full disk at any moment leaves the old content or the new one. A process that is killed
leaves its temporary file, which the next save of the same file removes.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

_LONGEST_NAME = 255  # bytes; the limit of common file systems
_PUBLIC_MODE, _PRIVATE_MODE = 0o666, 0o600  # before the umask
_WRITE_BITS = 0o222
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_unfinished: set[Path] = set()  # temporary files of this process


def write(path: Path, content: bytes | memoryview, *, private: bool = False) -> None:
    """Put ``content`` at ``path`` in one step; arguments and errors are those of ``replacing``."""
    with replacing(path, private=private) as temporary, temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Make a temporary file and yield its path; rename it to ``path`` when the block ends.

    A symbolic link keeps its target, and a file its mode. The umask decides who can read a new
    file; only its user can read a ``private`` one. Raises ``OSError`` (also if ``path`` is not a
    regular file, or is read-only), ``ValueError`` (a NUL in it), ``RuntimeError`` (a link loop).
    """
    target = path.resolve()
    mode = _mode_to_keep(target)
    remove_leftovers(target)
    if not target.parent.is_dir():  # FileLock would make it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    temporary = target.with_name(f"{_prefix(target)}{secrets.token_hex(4)}.partial")
    _unfinished.update((temporary, _lock_of(temporary)))
    try:
        with locked(_lock_of(temporary)):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            os.close(os.open(temporary, flags, _PRIVATE_MODE if private else _PUBLIC_MODE))
            yield temporary
            if mode is not None:
                temporary.chmod(mode)
            temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
        _unfinished.difference_update((temporary, _lock_of(temporary)))
    _sync_folder(target.parent)


def check_target(path: Path) -> None:
    """Raise ``OSError`` if ``path`` exists and cannot be replaced by a file."""
    _mode_to_keep(path.resolve())


def discard_unfinished() -> None:
    """Remove the temporary files of this process, which is about to end."""
    for temporary in tuple(_unfinished):
        with contextlib.suppress(OSError):
            temporary.unlink()


def reason(error: Exception) -> str:
    """Return why a file could not be written, in a few words."""
    return getattr(error, "strerror", None) or str(error)


def _mode_to_keep(target: Path) -> int | None:
    """Return the permissions of the file to replace, if any; raises ``OSError`` as ``replacing``.

    A pipe without a reader would block for ever, and a device is no file to open again.
    """
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise OSError(errno.EINVAL, f"it is {kind}")
    # The mode as well: the superuser may write to anything.
    if not mode & _WRITE_BITS or not os.access(target, os.W_OK):
        raise OSError(errno.EACCES, "the file is read-only")
    return stat.S_IMODE(mode)


def _prefix(target: Path) -> str:
    """Return how names of temporary files for ``target`` begin: its own name if that fits."""
    prefix = f".{target.name}."
    if len(os.fsencode(prefix)) + len("01234567.partial") <= _LONGEST_NAME:
        return prefix
    return f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:32]}."


def _lock_of(temporary: Path) -> Path:
    return temporary.with_suffix(".lock")


@contextlib.contextmanager
def locked(lock: Path) -> Iterator[bool | None]:
    """Hold a lock file inside the block, and remove it afterwards.

    Yields True if this process holds it, False if another does, and None where locks do not work,
    as on some network drives. A held lock shows that a living process uses the file beside it.
    """
    file = FileLock(lock, mode=_PRIVATE_MODE, thread_local=False)
    is_held: bool | None = True
    try:
        file.acquire(timeout=0)
    except Timeout:
        is_held = False
    except (OSError, NotImplementedError):
        is_held = None
    try:
        yield is_held
    finally:
        if is_held:
            with contextlib.suppress(OSError):
                lock.unlink()  # before the release: no process may lock a removed file
            file.release()


def remove_leftovers(target: Path) -> None:
    """Remove what killed saves of the file left; other processes may be saving it as well."""
    for leftover in target.parent.glob(f"{glob.escape(_prefix(target))}*.partial"):
        with locked(_lock_of(leftover)) as is_held, contextlib.suppress(OSError):
            if is_held:
                leftover.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the rename last through a power cut, where folders can be opened (not on Windows)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
