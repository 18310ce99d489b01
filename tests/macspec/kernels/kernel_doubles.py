"""Stand-ins for tests of the engine with kernels: quantised tiny pairs, and kernels that fail when told to."""

from collections.abc import Callable

import mlx.core as mx
from mlx import nn

from macspec.kernels import reference
from macspec.kernels.calls import Kernels
from macspec_models.checkpoints import load_drafter
from tiny_drafters import write_dflash
from tiny_engine import tiny_target

DIED = "[METAL] Command buffer execution failed: Caused GPU Hang Error"
SIZES = {"hidden_size": 64, "head_dim": 64, "intermediate_size": 96}
EXPERTS = {"moe_intermediate_size": 64}
FAMILIES = {
    "llama": {},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "qwen3_5": {"full_attention_interval": 2, "linear_key_head_dim": 32},
    "qwen3_5_moe": {
        "full_attention_interval": 2,
        "linear_key_head_dim": 32,
        **EXPERTS,
        "shared_expert_intermediate_size": 64,
    },
}


def make_pair(family, folder, mode):
    target = tiny_target(family, seed=3, **{**SIZES, **FAMILIES[family], "num_hidden_layers": 3})
    form = {"group_size": 32, "bits": 4, "mode": mode}
    nn.quantize(target.model, **form, class_predicate=lambda p, m: hasattr(m, "to_quantized") and "gate" not in p[-5:])
    write_dflash(folder, target.config, target_layer_ids=[0, 1])
    return target, load_drafter(folder, target)


class FailingKernels(Kernels):
    """MLX's ops in the kernels' place; the ``last``-th call of kernel ``name`` fails, when built or when evaluated."""

    def __init__(self, name: str, last: int, *, lazily: bool = False) -> None:
        super().__init__(lambda **_: None)
        self.name, self.left, self.lazily = name, last, lazily
        self.calls: dict[str, int] = {}

    def _run(self, name: str, function: Callable, *arguments, rows=None, **options):
        self.calls[name] = self.calls.get(name, 0) + 1
        out = function(*arguments, **options)
        if name == self.name:
            self.left -= 1
            if self.left == 0 and not self.lazily:
                raise RuntimeError(DIED)
            if self.left == 0:  # a singular matrix: MLX raises when it evaluates, as it does for a kernel
                return out + 0 * mx.linalg.inv(mx.zeros((2, 2)), stream=mx.cpu).sum().astype(out.dtype)
        return out

    def verify_qmm(self, *arguments, **options):
        return self._run("verify_qmm", reference.verify_qmm, *arguments, **options)

    def verify_qmm_matrix(self, *arguments, **options):
        return self._run("verify_qmm_matrix", reference.verify_qmm, *arguments, **options)

    def verify_moe_qmm(self, *arguments, sharers, **options):
        return self._run("verify_moe_qmm", reference.verify_moe_qmm, *arguments, **options)

    def keyed_choice(self, *arguments, **options):
        return self._run("keyed_choice", reference.keyed_choice, *arguments, **options)

    def draft_confidence(self, *arguments, **options):
        return self._run("draft_confidence", reference.draft_confidence, *arguments, **options)

    def accept_prefix(self, *arguments):
        self._run("accept_prefix", lambda: None)
        return reference.accept_prefix(*arguments)

    def recurrent_replay(self, *arguments, **options):
        return self._run("recurrent_replay", reference.recurrent_replay, *arguments, **options)

    def verify_attention(self, *arguments, **options):
        return self._run("verify_attention", reference.verify_attention, *arguments, **options)
