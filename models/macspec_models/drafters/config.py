"""Reading a published drafter's ``config.json``: which kind it is and every number its network needs.

Publishers put the same field at the top level or inside ``dflash_config``; both are read. What is not understood is
refused, because a flag that is silently ignored costs acceptance and nobody notices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from macspec_models.drafters.dflash import DFlashConfig
from macspec_models.drafters.rope import SUPPORTED, rope_kind
from macspec_models.errors import CheckpointError

#: Architecture names of published drafters this package runs. ``DFlashDraftModel`` defers to ``projector_type``.
ARCHITECTURES = {
    "DFlashDraftModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "DSparkDraftModel": "dspark",
    "Qwen3DSparkModel": "dspark",
    "DominoDraftModel": "domino",
}

#: Drafters of other backbones or families, by the name people would look for.
KNOWN_UNSUPPORTED = {
    "DFlashLagunaForCausalLM": "a DFlash drafter with Laguna's backbone",
    "MuseGlimmerAssistantModel": "Muse Glimmer's assistant model",
    "Gemma4DSparkModel": "a DSpark drafter with Gemma 4's backbone",
    "DFlashSpeculator": "a DFlash drafter in the layout of vLLM's speculators library",
    "DFlashSpeculatorModel": "a DFlash drafter in the layout of vLLM's speculators library",
    "Eagle3Speculator": "an EAGLE-3 drafter",
    "LlamaForCausalLMEagle3": "an EAGLE-3 drafter",
    "Qwen3Eagle3Model": "an EAGLE-3 drafter",
}

#: Fields of ``dflash_config`` that only training reads, or that say in other words what is read elsewhere.
TRAINING_ONLY = {
    "mask_token",
    "confidence_head_alpha",
    "ce_loss_alpha",
    "l1_loss_alpha",
    "loss_decay_gamma",
    "loss_type",
    "lambda_base",
    "num_anchors",
    "target_model",
    "target_model_name_or_path",
    "target_hidden_act",
}

_SHARED = {
    "target_layer_ids",
    "mask_token_id",
    "block_size",
    "num_target_layers",
    "target_hidden_size",
    "causal",
    "is_causal",
    "output_multiplier",
    "final_logit_softcapping",
    "input_embedding_scale",
    "attention_mode",
    "sample_from_anchor",
    "projector_type",
}
_OWN = {
    "dflash": set[str](),
    "dflash2": {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"},
    "dspark": {
        "markov_rank",
        "markov_head_type",
        "enable_confidence_head",
        "confidence_head_with_markov",
        "confidence_temperatures",
    },
    "domino": {"emb_dim", "gru_hidden_dim", "pure_draft_prefix_len", "shift_label"},
}


class _Fields:
    """Typed reads from a config, nested object first; complains with the file and the field's name."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        nested = raw.get("dflash_config") or {}
        if not isinstance(nested, Mapping):
            raise CheckpointError(f"{where}: dflash_config must be an object, it is a {type(nested).__name__}.")
        self.raw, self.nested, self.where = raw, nested, where

    def get(self, name: str, default: Any = None) -> Any:
        value = self.nested.get(name)
        value = self.raw.get(name) if value is None else value
        return default if value is None else value

    def fail(self, name: str, wanted: str) -> CheckpointError:
        value = self.get(name)
        said = "is missing" if value is None else f"is {value!r}"
        return CheckpointError(f"{self.where}: {name} {said}; it must be {wanted}.")

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise self.fail(name, f"a whole number of at least {least}")
        return value

    def number(self, name: str, default: float, *, positive: bool = True) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise self.fail(name, "a number")
        if positive and value <= 0:
            raise self.fail(name, "above zero")
        return float(value)

    def flag(self, name: str, default: bool | None) -> bool | None:
        value = self.get(name, default)
        if value is not None and not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value


def drafter_kind(raw: Mapping[str, Any], where: str) -> str:
    """Which drafter a config describes: ``dflash``, ``dflash2``, ``dspark`` or ``domino``.

    Raises:
        CheckpointError: it is another kind of model; the message names what it is.
    """
    names = raw.get("architectures") or []
    if not isinstance(names, list) or not names:
        raise CheckpointError(f"{where}: no architecture is named, so this is no published drafter.")
    for name in names:
        if name in ARCHITECTURES:
            break
    else:
        shown = ", ".join(map(str, names))
        if names[0] in KNOWN_UNSUPPORTED:
            raise CheckpointError(f"{where}: {KNOWN_UNSUPPORTED[names[0]]} ({shown}) is not supported.")
        raise CheckpointError(
            f"{where}: architecture {shown} is no block drafter this version knows. It knows "
            f"{', '.join(sorted(ARCHITECTURES))}."
        )
    kind = ARCHITECTURES[name]
    nested = raw.get("dflash_config") if isinstance(raw.get("dflash_config"), Mapping) else {}
    projector = (nested or {}).get("projector_type")
    if projector in (None, "", kind):
        return kind
    if name == "DFlashDraftModel" and projector in ("dspark", "domino"):
        return str(projector)
    raise CheckpointError(f"{where}: projector_type {projector!r} does not go with architecture {name}.")


def parse_config(raw: Mapping[str, Any], where: str) -> tuple[str, DFlashConfig]:
    """The kind of drafter and its configuration; fields of one kind only are in ``config.extra``.

    Args:
        raw: the parsed ``config.json``.
        where: the file's name, for messages.

    Raises:
        CheckpointError: a field is missing, wrong or not understood.
    """
    kind = drafter_kind(raw, where)
    fields = _Fields(raw, where)
    unknown = sorted(set(fields.nested) - _SHARED - _OWN[kind] - TRAINING_ONLY)
    if unknown:
        raise CheckpointError(
            f"{where}: dflash_config.{unknown[0]} is not understood, and ignoring it could cost acceptance unnoticed. "
            "A newer version may know it."
        )
    if fields.get("hidden_act", "silu") not in ("silu", "swish"):
        raise fields.fail("hidden_act", "silu")
    if raw.get("model_type") not in (None, "qwen3", "dflash", "dflash2", "dspark", "domino"):
        raise fields.fail("model_type", "qwen3, the backbone published block drafters have")
    mode = str(fields.get("attention_mode", "gqa")).lower()
    if mode not in ("gqa", "mha"):
        raise CheckpointError(f"{where}: attention_mode {mode!r} is not supported; gqa and mha are.")
    layers, heads = fields.integer("num_hidden_layers"), fields.integer("num_attention_heads")
    width, kv_heads = fields.integer("hidden_size"), fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.fail("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    if mode == "mha" and kv_heads != heads:
        raise fields.fail("num_key_value_heads", f"equal to num_attention_heads ({heads}) with attention_mode mha")
    layer_types, window = _layer_types(fields, layers)
    rope_theta, rope_scaling, partial = _rope(fields)
    soft_cap = fields.number("final_logit_softcapping", 0.0, positive=False)
    causal = fields.flag("is_causal", None)
    causal = fields.flag("causal", None) if causal is None else causal
    config = DFlashConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=fields.integer("head_dim", width // heads),
        intermediate_size=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        block_size=fields.integer("block_size", least=1 if kind in ("dspark", "domino") else 2),
        mask_token_id=fields.integer("mask_token_id", least=0),
        target_layer_ids=_taps(fields),
        num_target_layers=fields.integer("num_target_layers", 0, least=0),
        target_hidden_size=fields.integer("target_hidden_size", width),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_position_embeddings=fields.integer("max_position_embeddings", 32_768),
        attention_bias=bool(fields.flag("attention_bias", False)),
        layer_types=layer_types,
        sliding_window=window,
        is_causal=causal,
        output_multiplier=fields.number("output_multiplier", 1.0),
        final_logit_softcapping=soft_cap if soft_cap > 0 else None,
        input_embedding_scale=fields.number("input_embedding_scale", 1.0),
        sample_from_anchor=_anchor_predicts(fields, kind),
        partial_rotary_factor=partial,
        extra=_extra(fields, kind, width),
    )
    if not 0 < int(config.head_dim * partial) <= config.head_dim or int(config.head_dim * partial) % 2:
        raise fields.fail("partial_rotary_factor", f"a share of head_dim ({config.head_dim}) that is even")
    if not 0 <= config.mask_token_id < config.vocab_size:
        raise fields.fail("mask_token_id", f"below vocab_size ({config.vocab_size})")
    return kind, config


def _taps(fields: _Fields) -> tuple[int, ...]:
    taps = fields.get("target_layer_ids")
    whole = isinstance(taps, list) and bool(taps) and all(isinstance(t, int) and not isinstance(t, bool) for t in taps)
    if not whole or any(b <= a for a, b in zip(taps, taps[1:], strict=False)):
        raise fields.fail("target_layer_ids", "a list of ascending layer numbers")
    if taps[0] < 0:
        raise CheckpointError(
            f"{fields.where}: a drafter that reads the embedding's output (layer -1) is not supported."
        )
    return tuple(taps)


def _layer_types(fields: _Fields, layers: int) -> tuple[tuple[str, ...], int | None]:
    types = fields.get("layer_types") or []
    if not types:
        return (), None
    if not isinstance(types, list) or any(t not in ("full_attention", "sliding_attention") for t in types):
        raise fields.fail("layer_types", "a list of full_attention and sliding_attention")
    if len(types) < layers:
        raise fields.fail("layer_types", f"one entry for each of the {layers} layers")
    # Configs copied from the target's sometimes carry more entries than the drafter has layers; the first ones count.
    types = types[:layers]
    if "sliding_attention" not in types:
        return tuple(types), None
    return tuple(types), fields.integer("sliding_window", least=2)


def _rope(fields: _Fields) -> tuple[float, dict[str, Any] | None, float]:
    """Base, scaling object and rotated share of each head."""
    scaling = fields.raw.get("rope_parameters") or fields.raw.get("rope_scaling")
    if scaling is not None and not isinstance(scaling, Mapping):
        raise fields.fail("rope_scaling", "an object")
    scaling = dict(scaling or {})
    theta = fields.raw.get("rope_theta") or scaling.get("rope_theta") or 10_000.0
    partial = fields.raw.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1.0
    if isinstance(theta, bool) or not isinstance(theta, int | float) or theta <= 0:
        raise fields.fail("rope_theta", "a number above zero")
    if isinstance(partial, bool) or not isinstance(partial, int | float) or not 0 < partial <= 1:
        raise fields.fail("partial_rotary_factor", "a number above 0, at most 1")
    kind = rope_kind(scaling)
    if kind not in SUPPORTED:
        raise CheckpointError(f"{fields.where}: rope_type {kind!r} is not supported; {', '.join(SUPPORTED)} are.")
    if kind in ("default", "mrope"):
        return float(theta), None, float(partial)
    numbers = [
        name for name in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow") if name in scaling
    ]
    if "factor" not in scaling or any(
        scaling[n] is not None
        and (isinstance(scaling[n], bool) or not isinstance(scaling[n], int | float) or scaling[n] <= 0)
        for n in numbers
    ):
        raise CheckpointError(
            f"{fields.where}: rope_scaling of type {kind} needs numbers above zero, factor among them."
        )
    return float(theta), scaling, float(partial)


def _anchor_predicts(fields: _Fields, kind: str) -> bool:
    """Whether slot 0 gives a draft token: DSpark always (paper section 3), Domino when trained on shifted labels."""
    default = kind == "dspark" or (kind == "domino" and bool(fields.flag("shift_label", False)))
    declared = bool(fields.flag("sample_from_anchor", default))
    if declared != default and kind in ("dflash2", "domino"):
        raise fields.fail("sample_from_anchor", f"{str(default).lower()} for this {kind} drafter")
    return declared


def _extra(fields: _Fields, kind: str, width: int) -> dict[str, Any]:
    """Numbers only one kind of drafter has."""
    if kind == "dflash2":
        group = fields.integer("conv_group_size")
        if width % group:
            raise fields.fail("conv_group_size", f"a divisor of hidden_size ({width})")
        return {
            "conv_kernel_size": fields.integer("conv_kernel_size"),
            "conv_group_size": group,
            "selector_rank": fields.integer("selector_rank"),
            "selector_top_k": fields.integer("selector_top_k"),
        }
    if kind == "dspark":
        rank = fields.integer("markov_rank", 0, least=0)
        head = fields.get("markov_head_type", "vanilla")
        if head not in ("vanilla", "gated", "rnn"):
            raise fields.fail("markov_head_type", "vanilla, gated or rnn")
        alpha = fields.number("confidence_head_alpha", 0.0, positive=False)
        confident = bool(fields.flag("enable_confidence_head", alpha > 0))
        with_markov = confident and bool(fields.flag("confidence_head_with_markov", False))
        if with_markov and not rank:
            raise fields.fail("markov_rank", "above zero when confidence_head_with_markov is true")
        temperatures = fields.get("confidence_temperatures", [])
        if not isinstance(temperatures, list) or not all(type(t) in (int, float) and 0 < t < 1e6 for t in temperatures):
            raise fields.fail("confidence_temperatures", "a list of numbers above zero")
        depth = fields.integer("block_size") - (0 if _anchor_predicts(fields, kind) else 1)
        if temperatures and len(temperatures) != depth:
            raise fields.fail("confidence_temperatures", "one number for each draft token of a block")
        return {
            "confidence_temperatures": tuple(map(float, temperatures)),
            "markov_rank": rank,
            "markov_head_type": head,
            "enable_confidence_head": confident,
            "confidence_head_with_markov": with_markov,
        }
    if kind == "domino":
        return {
            "emb_dim": fields.integer("emb_dim"),
            "gru_hidden_dim": fields.integer("gru_hidden_dim"),
            "pure_draft_prefix_len": fields.integer("pure_draft_prefix_len", 0, least=0),
            "shift_label": bool(fields.flag("shift_label", False)),
        }
    return {}
