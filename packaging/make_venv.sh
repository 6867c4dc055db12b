#!/bin/sh
# Makes a virtual environment with the newest suitable Python: packaging/make_venv.sh FOLDER
# One that is there and works is kept. PYTHON=/path/to/python chooses another interpreter.
set -eu

folder=$1
oldest="3, 11"

if [ -x "$folder/bin/python" ] &&
    "$folder/bin/python" -c "import sys; sys.exit(sys.version_info < ($oldest))" 2>/dev/null &&
    "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi

without_venv=
for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    # Run it: a name on the path may be a shim for a Python that is not installed.
    "$candidate" -c "import sys; sys.exit(sys.version_info < ($oldest))" >/dev/null 2>&1 || continue
    if "$candidate" -c "import venv, ensurepip" >/dev/null 2>&1; then
        echo "Making $folder with $candidate ($("$candidate" --version))"
        exec "$candidate" -m venv --clear "$folder"
    fi
    without_venv=$candidate
done

if [ -n "$without_venv" ]; then
    version=$("$without_venv" -c "import sys; print('%d.%d' % sys.version_info[:2])")
    echo "$without_venv has no venv module. On Debian and Ubuntu: sudo apt-get install python$version-venv" >&2
else
    echo "Cutaway needs Python 3.11 or newer, and there is none on the path." >&2
    echo "Install one (python3.12, say), or name it: make setup PYTHON=/path/to/python3.12" >&2
fi
exit 1
