"""Check whether a window can be opened, before Qt, which would end the process instead."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGES = {  # libraries that Qt loads on Linux, and the package of Debian and Ubuntu with each
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libX11.so.6": "libx11-6",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libxkbcommon.so.0": "libxkbcommon0",
}
XCB_PACKAGES = {
    "libX11-xcb.so.1": "libx11-xcb1",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
}
OTHERWISE = "use `workbench run` on the command line, or set QT_QPA_PLATFORM=offscreen"
INVISIBLE = ("offscreen", "minimal", "minimalegl")  # platforms of Qt that show no window
X_PORT = 6000
CONNECT_S = 3.0


def trouble(environment: Mapping[str, str] = os.environ) -> str:
    """Return why no window can be opened, with the fix; empty if a window can be opened."""
    if sys.platform != "linux":
        return ""
    missing = _missing(PACKAGES)
    if missing:
        return missing
    platform = environment.get("QT_QPA_PLATFORM", "").split(";")[0].split(":")[0]
    wayland, display = environment.get("WAYLAND_DISPLAY"), environment.get("DISPLAY")
    if platform and platform != "xcb":
        return _unknown_platform(platform)
    if wayland and not platform:
        return ""
    if not display:
        return f"there is no display: start it on a desktop or through `ssh -X`, {OTHERWISE}"
    return _unreachable(display) or _missing(XCB_PACKAGES)


def is_invisible(platform: str) -> bool:
    """Return True if nobody can see or close a window on this platform of Qt."""
    return platform in INVISIBLE


def hush_offscreen() -> None:
    """Suppress the message that Qt's offscreen platform prints whenever a window is resized."""
    from PySide6.QtCore import (
        QMessageLogContext,
        QtMsgType,
        qFormatLogMessage,
        qInstallMessageHandler,
    )
    from PySide6.QtGui import QGuiApplication

    def write(kind: QtMsgType, context: QMessageLogContext, message: str) -> None:
        if not message.startswith("This plugin does not support"):
            sys.stderr.write(f"{qFormatLogMessage(kind, context, message)}\n")

    if is_invisible(QGuiApplication.platformName()):
        qInstallMessageHandler(write)


def _missing(packages: Mapping[str, str]) -> str:
    absent = {name: package for name, package in packages.items() if not _loads(name)}
    if not absent:
        return ""
    return (
        f"Qt needs {', '.join(absent)}, which this system lacks: "
        f"sudo apt install {' '.join(absent.values())}"
    )


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _unknown_platform(platform: str) -> str:
    spec = importlib.util.find_spec("PySide6")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        return ""
    plugins = Path(folders[0]) / "Qt" / "plugins" / "platforms"
    offered = sorted(path.stem.removeprefix("libq") for path in plugins.glob("libq*.so"))
    if platform in offered or platform.startswith("wayland"):
        return ""
    return f"QT_QPA_PLATFORM={platform} is not a platform of Qt; it has {', '.join(offered)}"


def _unreachable(display: str) -> str:
    import socket

    host, _, screen = display.rpartition(":")
    number = screen.split(".")[0]
    if not number.isdigit():
        return f"DISPLAY={display} names no display: set it to a display such as :0, or {OTHERWISE}"
    addresses: list[tuple[socket.AddressFamily, str | tuple[str, int]]]
    if host in ("", "unix"):
        path = f"/tmp/.X11-unix/X{number}"
        addresses = [(socket.AF_UNIX, f"\0{path}"), (socket.AF_UNIX, path)]
    else:
        addresses = [(socket.AF_INET, (host, X_PORT + int(number)))]
    for family, address in addresses:
        with socket.socket(family) as connection:
            connection.settimeout(CONNECT_S)
            if connection.connect_ex(address) == 0:
                return ""
    return f"DISPLAY={display} does not answer: start it on a desktop, {OTHERWISE}"
