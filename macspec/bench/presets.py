"""The prompts: suites shipped with the package, files of the user's own, and long contexts made from the former.

The shipped suites were written for this benchmark and share no prompt with the drafter's training. Their SHA-256 goes
into every result, because figures from different prompts must not be compared as if they were the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from macspec.bench.samples import Prompt
from macspec.errors import RequestError
from macspec.request import Wire

SUITES = ("chat", "code", "math", "summarise", "rewrite", "json")
FOLDER = Path(__file__).parent / "suites"
#: Fields that hold the prompt in files of known benchmarks: ours, MT-Bench, GSM8K, HumanEval, MATH-500, MBPP.
PROMPT_FIELDS = ("prompt", "turns", "question", "problem", "text", "instruction")
MAX_FILE_BYTES = 64 << 20
#: Rough characters per token of English prose; the result reports the true number of prompt tokens.
CHARACTERS_PER_TOKEN = 4.3


@dataclass(frozen=True, slots=True)
class Suite(Wire):
    """A named list of prompts and the hash of the file it came from."""

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]


def load(name: str) -> Suite:
    """A shipped suite by name, or a JSONL file by path; raises `RequestError` with what is wrong."""
    if name in SUITES:
        return _read(FOLDER / f"{name}.jsonl", name)
    path = Path(name).expanduser()
    if path.is_file():
        return _read(path, re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem) or "file")
    raise RequestError(
        f"There is no suite or file {name!r}; suites are {', '.join(SUITES)} and all, files are JSON lines.",
        param="suite",
    )


def load_all(names: Sequence[str]) -> list[Suite]:
    """Several suites; ``all`` stands for every shipped one."""
    wanted = list(dict.fromkeys(n for name in names for n in (SUITES if name == "all" else (name,))))
    suites = [load(name) for name in wanted]
    ids = [prompt.id for suite in suites for prompt in suite.prompts]
    twice = next((i for i in ids if ids.count(i) > 1), None)
    if twice is not None:
        raise RequestError(f"The prompt id {twice!r} occurs twice; ids must be unique in a run.", param="suite")
    return suites


def published_hashes() -> dict[str, str]:
    """SHA-256 of every shipped suite as recorded when it was written."""
    lines = (FOLDER / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return {name.removesuffix(".jsonl"): digest for digest, name in (line.split() for line in lines)}


def long_context(tokens: int) -> Suite:
    """Questions at the end of about ``tokens`` tokens of text, made from the shipped passages."""
    passages = [p.text.split("\n\n", 1)[1] for p in load("summarise").prompts]
    label = f"context-{tokens // 1000}k" if tokens >= 1000 else f"context-{tokens}"
    wanted = int(tokens * CHARACTERS_PER_TOKEN)
    prompts = []
    for index in range(3):
        parts: list[str] = []
        size = number = 0
        while size < wanted:
            # Numbering and rotation keep the text from being one block again and again.
            body = f"Section {number + 1}.\n{passages[(number + index) % len(passages)]}"
            parts.append(body[: max(wanted - size, 1)])
            size += len(body) + 2
            number += 1
        question = (
            "Which of these sections would interest a town council most, and why?",
            "Write a short story in which two of these sections meet.",
            "Explain to a visitor what the first three sections have in common.",
        )[index]
        text = "\n\n".join(parts) + f"\n\n{question}"
        prompts.append(Prompt(f"{label}-{index + 1}", label, text))
    digest = hashlib.sha256("\0".join(p.text for p in prompts).encode()).hexdigest()
    return Suite(label, digest, tuple(prompts))


def parse_contexts(text: str) -> list[int]:
    """``1k,8k,512`` as token counts."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(k?)\s*", part, re.ASCII)
        if match is None or not int(match.group(1)):
            raise RequestError(f"ctx is {text!r}; write token counts such as 1k,8k,32k.", param="ctx")
        found.append(int(match.group(1)) * (1000 if match.group(2) else 1))
    return found


def _read(path: Path, name: str) -> Suite:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise RequestError(
                f"{path} is larger than {MAX_FILE_BYTES >> 20} MB; that is no prompt file.", param="suite"
            )
        raw = path.read_bytes()
        lines = raw.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"The suite {path} cannot be read: {error}.", param="suite") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            prompts.append(_prompt(line, number, path, name))
    if not prompts:
        raise RequestError(f"The suite {path} has no prompts.", param="suite")
    return Suite(name, hashlib.sha256(raw).hexdigest(), tuple(prompts))


def _prompt(line: str, number: int, path: Path, name: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise RequestError(f"{path}, line {number} is not JSON.", param="suite") from error
    if not isinstance(entry, dict):
        raise RequestError(f"{path}, line {number} is not an object.", param="suite")
    text = next((entry[field] for field in PROMPT_FIELDS if entry.get(field)), None)
    if isinstance(text, list):
        text = text[0] if text else None
    if not isinstance(text, str) or not text.strip():
        fields = ", ".join(PROMPT_FIELDS)
        raise RequestError(f"{path}, line {number} has no prompt; expected one of the fields {fields}.", param="suite")
    own_id, category = entry.get("id"), entry.get("category")
    return Prompt(
        id=own_id if isinstance(own_id, str) and own_id else f"{name}-{number}",
        category=category if isinstance(category, str) and category else name,
        text=text,
    )
