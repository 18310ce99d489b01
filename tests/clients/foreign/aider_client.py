"""aider's own way to call a model, against ``URL MODEL``: a turn and a stream, printed as JSON.

aider takes the address from ``OPENAI_API_BASE``, so the URL is not read here.
"""

from __future__ import annotations

import json
import sys

from aider.models import Model

_, model = sys.argv[1:]
caller = Model(f"openai/{model}")
caller.extra_params = {**(caller.extra_params or {}), "max_tokens": 24}
ask = [{"role": "user", "content": "Say hello."}]
_, whole = caller.send_completion(ask, functions=None, stream=False, temperature=0)
_, stream = caller.send_completion(ask, functions=None, stream=True, temperature=0)
found = {
    "whole": whole.choices[0].message.content,
    "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in stream),
}
print(json.dumps(found))
