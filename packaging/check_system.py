"""Are the system's own libraries that Qt needs there? Names the missing ones and the line that installs them.

Run by ``make setup`` before anything that would fail with a riddle of the dynamic linker. Only Linux distributions
leave such libraries out; on macOS and Windows there is nothing to check. Exit status 1 if something is missing.

Needs no package, and runs on any Python 3, because it may run before the environment exists.
"""

import argparse
import ctypes
import os
import shutil
import sys

# library: its package for apt, dnf, pacman, zypper
ALWAYS = {
    "libEGL.so.1": ("libegl1", "libglvnd-egl", "libglvnd", "Mesa-libEGL1"),
    "libGL.so.1": ("libgl1", "libglvnd-glx", "libglvnd", "Mesa-libGL1"),
    "libX11.so.6": ("libx11-6", "libX11", "libx11", "libX11-6"),
    "libxkbcommon.so.0": ("libxkbcommon0", "libxkbcommon", "libxkbcommon", "libxkbcommon0"),
    "libdbus-1.so.3": ("libdbus-1-3", "dbus-libs", "dbus", "libdbus-1-3"),
    "libfontconfig.so.1": ("libfontconfig1", "fontconfig", "fontconfig", "libfontconfig1"),
    "libfreetype.so.6": ("libfreetype6", "freetype", "freetype2", "libfreetype6"),
    "libglib-2.0.so.0": ("libglib2.0-0", "glib2", "glib2", "libglib-2_0-0"),
    "libgthread-2.0.so.0": ("libglib2.0-0", "glib2", "glib2", "libgthread-2_0-0"),
    "libzstd.so.1": ("libzstd1", "libzstd", "zstd", "libzstd1"),
}
WITH_X11 = {
    "libxkbcommon-x11.so.0": ("libxkbcommon-x11-0", "libxkbcommon-x11", "libxkbcommon-x11", "libxkbcommon-x11-0"),
    "libX11-xcb.so.1": ("libx11-xcb1", "libX11-xcb", "libx11", "libX11-xcb1"),
    "libxcb-cursor.so.0": ("libxcb-cursor0", "xcb-util-cursor", "xcb-util-cursor", "libxcb-cursor0"),
    "libxcb-icccm.so.4": ("libxcb-icccm4", "xcb-util-wm", "xcb-util-wm", "libxcb-icccm4"),
    "libxcb-image.so.0": ("libxcb-image0", "xcb-util-image", "xcb-util-image", "libxcb-image0"),
    "libxcb-keysyms.so.1": ("libxcb-keysyms1", "xcb-util-keysyms", "xcb-util-keysyms", "libxcb-keysyms1"),
    "libxcb-randr.so.0": ("libxcb-randr0", "libxcb", "libxcb", "libxcb-randr0"),
    "libxcb-render-util.so.0": (
        "libxcb-render-util0",
        "xcb-util-renderutil",
        "xcb-util-renderutil",
        "libxcb-render-util0",
    ),
    "libxcb-shape.so.0": ("libxcb-shape0", "libxcb", "libxcb", "libxcb-shape0"),
    "libxcb-shm.so.0": ("libxcb-shm0", "libxcb", "libxcb", "libxcb-shm0"),
    "libxcb-sync.so.1": ("libxcb-sync1", "libxcb", "libxcb", "libxcb-sync1"),
    "libxcb-util.so.1": ("libxcb-util1", "xcb-util", "xcb-util", "libxcb-util1"),
    "libxcb-xfixes.so.0": ("libxcb-xfixes0", "libxcb", "libxcb", "libxcb-xfixes0"),
    "libxcb-xkb.so.1": ("libxcb-xkb1", "libxcb", "libxcb", "libxcb-xkb1"),
}
MANAGERS = {
    "apt-get": "apt-get install -y --no-install-recommends",
    "dnf": "dnf install -y",
    "pacman": "pacman -S --needed",
    "zypper": "zypper install -y",
}


def is_there(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def needed_libraries(with_x11: bool) -> "dict[str, tuple[str, str, str, str]]":
    return {**ALWAYS, **WITH_X11} if with_x11 else dict(ALWAYS)


def install_line(missing: "list[str]", manager: str, root: bool) -> str:
    """The command that installs the packages of the missing libraries with this package manager."""
    column = list(MANAGERS).index(manager)
    known = needed_libraries(with_x11=True)
    packages = sorted({known[library][column] for library in missing})
    return ("" if root else "sudo ") + MANAGERS[manager] + " " + " ".join(packages)


def main(arguments: "list[str]") -> int:
    parser = argparse.ArgumentParser(description="Check the system libraries that Qt needs.")
    parser.add_argument("--x11", action="store_true", help="those of an X11 display too, even without one")
    parser.add_argument("--apt-packages", action="store_true", help="print only the missing packages, in apt's names")
    options = parser.parse_args(arguments)
    if not sys.platform.startswith("linux"):
        return 0
    missing = [name for name in needed_libraries(options.x11 or bool(os.environ.get("DISPLAY"))) if not is_there(name)]
    if options.apt_packages:
        print(" ".join(sorted({needed_libraries(True)[name][0] for name in missing})))
        return 0
    if not missing:
        return 0
    print("Cutaway's window needs system libraries that are missing: " + ", ".join(missing), file=sys.stderr)
    found = [manager for manager in MANAGERS if shutil.which(manager)]
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    for manager in found[:1] or MANAGERS:
        print("Install them with:  " + install_line(missing, manager, root), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
