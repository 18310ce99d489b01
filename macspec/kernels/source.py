"""The Metal sources as data: contract, names, header and body of one ``.metal`` file each.

A file is a contract comment, directives (``//@ inputs a b``, ``outputs``, ``template``, optionally ``strided``), and
two parts introduced by ``//@ header`` and ``//@ body``. MLX looks for shape and attribute names in the body only, so
the contract may mention anything. ``//@ body other`` takes the body of another kernel, compiled under this header, and
``//@ header other`` its header.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NAMES = (
    "draft_confidence",
    "keyed_choice",
    "accept_prefix",
    "verify_qmm",
    "verify_qmm_fp",
    "verify_qmm_matrix",
    "verify_qmm_matrix_fp",
    "verify_moe_qmm",
    "verify_moe_qmm_fp",
    "verify_attention",
    "verify_attention_quantised",
    "verify_attention_merge",
    "recurrent_replay",
)


@dataclass(frozen=True)
class KernelSource:
    """One kernel as ``mx.fast.metal_kernel`` wants it, plus its contract in words."""

    name: str
    contract: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    template: tuple[str, ...]
    header: str
    body: str
    #: The kernel reads its inputs where they lie (``ensure_row_contiguous=False``) and uses their strides.
    strided: bool

    @property
    def digest(self) -> str:
        """Changes with the text; part of the kernel's name, because old MLX versions cache compiled kernels by name."""
        return hashlib.sha256((self.header + self.body).encode()).hexdigest()[:8]


def parse(name: str, text: str) -> KernelSource:
    """Read one file's text. Raises ValueError when a directive is missing or unknown."""
    directives: dict[str, tuple[str, ...]] = {}
    parts: dict[str, list[str]] = {"contract": [], "header": [], "body": []}
    part = "contract"
    for line in text.splitlines():
        if not line.startswith("//@ "):
            parts[part].append(line)
            continue
        word, *rest = line[4:].split()
        if word in ("header", "body"):
            part = word
            parts[part] += [getattr(load(other), part) for other in rest]
        elif word in ("inputs", "outputs", "template", "strided"):
            directives[word] = tuple(rest)
        else:
            raise ValueError(f"{name}.metal: unknown directive '{word}'")
    missing = {"inputs", "outputs", "template"} - set(directives)
    if missing or part != "body":
        raise ValueError(f"{name}.metal: missing {', '.join(sorted(missing)) or 'the body'}")
    return KernelSource(
        name=name,
        contract="\n".join(line.removeprefix("//").strip() for line in parts["contract"]),
        inputs=directives["inputs"],
        outputs=directives["outputs"],
        template=directives["template"],
        header="\n".join(parts["header"]),
        body="\n".join(parts["body"]),
        strided="strided" in directives,
    )


@cache
def load(name: str) -> KernelSource:
    """The kernel ``name`` of this package; see `NAMES`."""
    return parse(name, (files("macspec.kernels") / f"{name}.metal").read_text())
