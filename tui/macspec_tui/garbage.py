"""When Python looks for unreachable objects: after an answer, not while somebody types and text streams.

A search through everything takes 60 to 130 ms here, in which no key is seen, and Python starts one about every second
while an answer is drawn. The frequent searches through new objects take about 1 ms and go on as always.
"""

from __future__ import annotations

import gc

#: Searches of the middle generation until Python itself searches everything: about 15,000 tokens of one answer, so
#: that an answer without end is bounded too.
FULL_AFTER = 1000


def prepare() -> None:
    """Take what was made at the start out of every later search, and leave full ones to `collect`."""
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_AFTER)


def collect() -> None:
    """Search everything now; does nothing in a process that was not prepared."""
    if gc.get_freeze_count():
        gc.collect()
