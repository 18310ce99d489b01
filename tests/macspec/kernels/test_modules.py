"""A tiny model gives the same tokens with executor-backed kernels as without, and gets its modules back."""

import mlx.core as mx
import pytest
from metalcpu import metal_kernel, options
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama, qwen3, qwen3_moe, qwen3_next
from mlx_lm.models.cache import make_prompt_cache

from macspec.kernels.calls import Kernels
from macspec.kernels.library import KernelLibrary
from macspec.kernels.modules import VerifyAttention, VerifyEmbedding, VerifyLinear, VerifySwitchLinear, install

SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 300,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
RECURRENT = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 64,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 2,
}


def tiny(kind: str, dtype: mx.Dtype = mx.float32) -> nn.Module:
    mx.random.seed(4)
    module = {"llama": llama, "qwen3": qwen3, "qwen3_moe": qwen3_moe, "qwen3_next": qwen3_next}[kind]
    values = dict(SIZES, model_type=kind, tie_word_embeddings=kind != "llama", **(EXPERTS if "qwen3_" in kind else {}))
    values |= RECURRENT if kind == "qwen3_next" else {}
    model = module.Model(module.ModelArgs.from_dict(values))
    model.set_dtype(dtype)
    # Larger weights than at initialisation, so that every layer matters.
    model.apply(lambda a: a * 1.5 if a.ndim > 1 else a)
    nn.quantize(
        model,
        group_size=64,
        bits=4,
        class_predicate=lambda p, m: hasattr(m, "to_quantized") and "gate" != p.split(".")[-1],
    )
    model.eval()
    return model


def verify_passes(model: nn.Module, rows) -> list[mx.array]:
    """Logits of a prefill and verification passes of several sizes over one growing cache."""
    cache, out = make_prompt_cache(model), []
    for number, count in enumerate(rows):
        tokens = mx.random.randint(0, SIZES["vocab_size"], (1, count), key=mx.random.key(number))
        out.append(model(tokens, cache=cache))
    mx.eval(out)
    return out


def forced() -> KernelLibrary:
    return KernelLibrary("force", Kernels(metal_kernel))


FEW, MANY = (40, 1, 4, 3), (40, 1, 2, 3, 5, 9, 16, 1)


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("llama", FEW),
        ("qwen3_moe", FEW),
        *((kind, MANY) for kind in ("llama", "qwen3", "qwen3_moe", "qwen3_next")),
    ],
)
def test_same_tokens_with_and_without_kernels(kind, rows):
    model, library = tiny(kind), forced()
    expected = verify_passes(model, rows)
    before = dict(model.named_modules())
    parameters = [name for name, _ in tree_flatten(model.parameters())]
    replacement = install(model, library)
    kinds = {type(m) for _, m in model.named_modules()}
    assert VerifyAttention in kinds and VerifyLinear in kinds
    assert VerifyEmbedding in kinds and (VerifySwitchLinear in kinds) == ("qwen3_" in kind)
    assert [name for name, _ in tree_flatten(model.parameters())] == parameters
    with options(require_outputs=False):
        found = verify_passes(model, rows)
    for a, b in zip(expected, found, strict=True):
        assert mx.array_equal(mx.argmax(a, -1), mx.argmax(b, -1))
        assert mx.abs(a - b).max() < 1e-3 * mx.abs(a).max()
    assert mx.array_equal(expected[0], found[0])  # the prefill of 40 rows is MLX's own
    assert {"verify_qmm", "verify_attention"} <= {name.split()[0] for name in library._active}
    replacement.remove()
    assert all(m is before[name] for name, m in model.named_modules()) and len(replacement) == 0
    assert all(mx.array_equal(a, b) for a, b in zip(expected, verify_passes(model, rows), strict=True))


def test_with_kernels_a_rows_logits_do_not_depend_on_the_row_count():
    model = tiny("qwen3", mx.bfloat16)
    install(model, forced())
    tokens = mx.random.randint(0, 300, (1, 14), key=mx.random.key(9))
    with options(require_outputs=False):
        whole, parts = [], []
        for cuts, out in (((10, 4), whole), ((10, 1, 1, 2), parts)):
            cache, at = make_prompt_cache(model), 0
            for count in cuts:
                out.append(model(tokens[:, at : at + count], cache=cache))
                mx.eval(out[-1])
                at += count
    assert mx.array_equal(mx.concatenate(whole, 1), mx.concatenate(parts, 1))


def test_a_row_count_on_the_device_leaves_the_wanted_rows_alone():
    model, library = tiny("llama"), forced()
    install(model, library)
    tokens = mx.random.randint(0, 300, (1, 4), key=mx.random.key(2))
    with options(require_outputs=False):
        whole = model(tokens, cache=make_prompt_cache(model))
        library.row_count = mx.array([2], mx.int32)
        part = model(tokens, cache=make_prompt_cache(model))
    assert mx.array_equal(whole[:, :2], part[:, :2]) and not mx.array_equal(whole[:, 2:], part[:, 2:])


def test_cases_cover_what_a_pass_asks_for():
    model, library = tiny("qwen3_moe"), forced()
    replacement = install(model, library)
    names = {case.name for case in replacement.cases}
    with options(require_outputs=False):
        verify_passes(model, rows=(1, 4))
    assert set(library._active) and set(library._active) <= names


def test_nothing_is_replaced_without_kernels_or_when_off():
    model = tiny("llama")
    before = dict(model.named_modules())
    for library in (KernelLibrary("probe", None), KernelLibrary("off", Kernels(metal_kernel))):
        assert len(install(model, library)) == 0
    assert all(m is before[name] for name, m in model.named_modules())
    assert len(install(model, KernelLibrary("probe", Kernels(metal_kernel)))) > 0
    assert not any("metalcpu" in str(type(m)) for _, m in model.named_modules())


def test_formats_and_types_without_a_kernel_keep_mlx():
    model = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 64))
    assert len(install(model, forced())) == 0
    nn.quantize(model, mode="nvfp4", group_size=16, bits=4)
    model.layers[0].global_scale = mx.array(0.5)
    assert len(install(model, forced())) == 1 and type(model.layers[0]) is nn.QuantizedLinear
    layer = nn.QuantizedLinear(128, 64, bias=True, group_size=64, bits=4)
    model, library = nn.Sequential(layer), forced()
    install(model, library)
    x = mx.random.normal((2, 128))
    assert mx.allclose(model(x), layer(x), atol=1e-5)
    library._active.clear()
    model(x.astype(mx.float16))  # not the scales' type: MLX promotes, the kernel is not asked
    model(mx.zeros((2, 9, 128)))  # 18 rows
    assert not library._active
