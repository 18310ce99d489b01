#!/bin/sh
# Installs the clients that tests/clients talks to the server with, each group in a Python of its own beside the virtual
# environment $1, because their dependencies clash: llm, litellm and langchain-openai in one, aider in another.
# A group that cannot be installed is reported, and its tests are skipped.
set -eu
venv=$1

group() {
    folder=$venv/clients-$1
    shift
    [ -e "$folder/.ready" ] && return
    printf 'macspec: installing %s into %s (once)\n' "$*" "$folder" >&2
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --allow-existing --python 3.12 "$folder" && uv pip install --quiet --python "$folder/bin/python" "$@"
    else
        "$venv/bin/python" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    fi && touch "$folder/.ready" || printf 'macspec: %s could not be installed; its tests will be skipped\n' "$*" >&2
}

group chat llm litellm langchain-openai
group aider aider-chat
