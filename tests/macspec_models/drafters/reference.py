"""The published drafters in NumPy float64, written from their publications' equations and the published tensor names.

Deliberately naive and independent of the package: everything is recomputed for every block, one slot or head at a time
where that is the clearer way to say it. DFlash: arXiv 2602.06036 section 4 and appendix A.3. DFlash 2: grouped dynamic
convolution and path selector of its authors' release. DSpark: arXiv 2607.05147 section 3. Domino: arXiv 2605.29707.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def inverse_frequencies(raw: Mapping[str, Any], dims: int) -> tuple[Array, float]:
    """Radians per position of each pair, and the factor rotated vectors grow by."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = raw.get("rope_theta") or scaling.get("rope_theta")
    plain = np.array([theta ** (-2 * i / dims) for i in range(dims // 2)])
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return plain, 1.0
    factor = scaling["factor"]
    if kind == "linear":
        return plain / factor, 1.0
    original = scaling.get("original_max_position_embeddings", raw["max_position_embeddings"])
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        out = []
        for frequency in plain:
            wavelength = 2 * math.pi / frequency
            if wavelength < original / high:
                out.append(frequency)
            elif wavelength > original / low:
                out.append(frequency / factor)
            else:
                smooth = (original / wavelength - low) / (high - low)
                out.append((1 - smooth) * frequency / factor + smooth * frequency)
        return np.array(out), 1.0
    assert kind == "yarn"  # Peng et al. 2023, "NTK-by-parts"

    def pair_turning(turns: float) -> float:
        return dims * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = pair_turning(scaling.get("beta_fast", 32)), pair_turning(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    out = []
    for i, frequency in enumerate(plain):
        interpolated = min(max((i - low) / (high - low), 0), 1)
        out.append(interpolated * frequency / factor + (1 - interpolated) * frequency)
    return np.array(out), scaling.get("attention_factor") or 0.1 * math.log(factor) + 1


class Reference:
    """One drafter: its ``config.json``, its weights, and the target's embedding ``table`` and head ``rows``."""

    def __init__(self, raw: Mapping[str, Any], tensors: Mapping[str, Array], table: Array, rows: Array) -> None:
        self.raw, self.nested = raw, raw["dflash_config"]
        self.w = {name: np.asarray(values, np.float64) for name, values in tensors.items()}
        self.table, self.rows = table.astype(np.float64), rows.astype(np.float64)
        self.eps = raw["rms_norm_eps"]

    def option(self, name: str, default: Any) -> Any:
        return self.nested.get(name, self.raw.get(name, default))

    def linear(self, name: str, x: Array) -> Array:
        out = x @ self.w[f"{name}.weight"].T
        return out + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else out

    def norm(self, name: str, x: Array) -> Array:
        return rms_norm(x, self.w[f"{name}.weight"], self.eps)

    def rotate(self, x: Array, positions: Array) -> Array:
        """``x [n, heads, head_dim]`` turned in pairs (i, i + dims / 2) of its first ``dims`` channels."""
        scaling = self.raw.get("rope_parameters") or self.raw.get("rope_scaling") or {}
        share = self.raw.get("partial_rotary_factor", scaling.get("partial_rotary_factor", 1.0))
        dims = int(x.shape[-1] * share)
        frequencies, growth = inverse_frequencies(self.raw, dims)
        angles = positions[:, None, None] * frequencies
        a, b, rest = x[..., : dims // 2], x[..., dims // 2 : dims], x[..., dims:]
        turned = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
        return np.concatenate([growth * turned[0], growth * turned[1], rest], -1)

    def attention(self, layer: int, x: Array, context: Array, first: int) -> Array:
        """Block rows ``x`` at positions N... over context rows (from position ``first``) and each other (A.3)."""
        start = f"layers.{layer}.self_attn."
        dim, heads, kv = self.raw["head_dim"], self.raw["num_attention_heads"], self.raw["num_key_value_heads"]
        count = len(context)
        own = first + count + np.arange(len(x))
        positions = np.concatenate([first + np.arange(count), own])
        both = np.concatenate([context, x])
        q = self.rotate(self.norm(start + "q_norm", self.linear(start + "q_proj", x).reshape(-1, heads, dim)), own)
        k = self.norm(start + "k_norm", self.linear(start + "k_proj", both).reshape(-1, kv, dim))
        k = self.rotate(k, positions)
        v = self.linear(start + "v_proj", both).reshape(-1, kv, dim)
        types = self.raw.get("layer_types") or ["full_attention"] * (layer + 1)
        sliding = types[layer] == "sliding_attention"
        causal = self.raw.get("is_causal", self.raw.get("causal"))
        causal = sliding if causal is None else causal
        out = np.zeros((len(x), heads, dim))
        for s in range(len(x)):
            allowed = []
            for row in range(len(both)):
                if row < count:
                    allowed.append(not sliding or own[s] - positions[row] < self.raw["sliding_window"])
                else:
                    allowed.append(not causal or row - count <= s)
            for h in range(heads):
                scores = k[:, h // (heads // kv)] @ q[s, h] / math.sqrt(dim)
                scores = np.where(allowed, scores, -np.inf)
                weights = np.exp(scores - scores.max())
                out[s, h] = weights / weights.sum() @ v[:, h // (heads // kv)]
        return self.linear(start + "o_proj", out.reshape(len(x), -1))

    def mlp(self, layer: int, x: Array) -> Array:
        start = f"layers.{layer}.mlp."
        gate = self.linear(start + "gate_proj", x)
        return self.linear(start + "down_proj", gate * sigmoid(gate) * self.linear(start + "up_proj", x))

    def convolve(self, name: str, x: Array, source: Array, which: int) -> Array:
        """DFlash 2: out[i] = sum_t (base[t] + delta[i, t, group]) * x[i - t], zero left of the anchor."""
        base = self.w[f"{name}.base_kernel"][which]
        taps, group = len(base), self.nested["conv_group_size"]
        delta = self.linear(f"{name}.kernel_projection", source).reshape(len(x), 2, taps, -1)[:, which]
        out = np.zeros_like(x)
        for i in range(len(x)):
            for t in range(min(taps, i + 1)):
                out[i] += (base[t] + np.repeat(delta[i, t], group)) * x[i - t]
        return out

    def hidden(self, features: Array, block: list[int], first: int = 0) -> Array:
        """Hidden states of every block slot; ``features [N, taps * D]`` of positions ``first ...``."""
        context = self.norm("hidden_norm", self.linear("fc", features.astype(np.float64)))
        x = self.table[block] * self.option("input_embedding_scale", 1.0)
        for layer in range(self.raw["num_hidden_layers"]):
            start = f"layers.{layer}."
            convolved = start + "attention_conv.base_kernel" in self.w
            for norm, conv in (("input_layernorm", "attention_conv"), ("post_attention_layernorm", "mlp_conv")):
                normed = self.norm(start + norm, x)
                y = self.convolve(start + conv, normed, normed, 0) if convolved else normed
                y = self.attention(layer, y, context, first) if norm == "input_layernorm" else self.mlp(layer, y)
                x = x + (self.convolve(start + conv, y, normed, 1) if convolved else y)
        return self.norm("norm", x)

    def logits(self, hidden: Array) -> Array:
        out = hidden @ self.rows.T * self.option("output_multiplier", 1.0)
        cap = self.option("final_logit_softcapping", None)
        return cap * np.tanh(out / cap) if cap else out

    def block(self, anchor: int, masks: int) -> list[int]:
        return [anchor] + [self.nested["mask_token_id"]] * masks

    def dflash(self, features: Array, anchor: int, count: int, first: int = 0) -> Array:
        """Logits of ``count`` draft tokens."""
        masks = count - 1 if self.option("sample_from_anchor", False) else count
        return self.logits(self.hidden(features, self.block(anchor, masks), first)[-count:])

    def dflash2(self, features: Array, anchor: int, count: int) -> tuple[list[int], Array, Array]:
        """Greedy path: tokens, their scores over the candidates, the candidates (both in descending logit order)."""
        hidden = self.hidden(features, self.block(anchor, count))[1:]
        logits, start = self.logits(hidden), "candidate_selector."
        before, after = self.w[start + "predecessor_codebook"], self.w[start + "successor_codebook"]
        tokens, all_scores, all_candidates = [], [], []
        for t in range(count):
            candidates = np.argsort(-logits[t])[: self.nested["selector_top_k"]]
            query = before[anchor] * self.linear(start + "hidden_projection", hidden[t])
            scores = np.array([logits[t, b] + query @ after[b] for b in candidates])
            anchor = int(candidates[scores.argmax()])
            tokens.append(anchor)
            all_scores.append(scores)
            all_candidates.append(candidates)
        return tokens, np.array(all_scores), np.array(all_candidates)

    def dspark(self, features: Array, anchor: int, count: int) -> tuple[list[int], Array, Array | None]:
        """Tokens, corrected logits and the confidence head's sigmoid (None without that head)."""
        masks = count - 1 if self.option("sample_from_anchor", True) else count
        hidden = self.hidden(features, self.block(anchor, masks))[-count:]
        logits, sure, tokens = self.logits(hidden), [], []
        rank, head = self.nested.get("markov_rank", 0), self.nested.get("markov_head_type")
        state = np.zeros(rank)
        for k in range(count):
            if rank:
                before = self.w["markov_head.markov_w1.weight"][anchor]
                latent = before
                if head == "gated":
                    gate = sigmoid(self.linear("markov_head.gate_proj", np.concatenate([hidden[k], before])))
                    latent = gate * before
                elif head == "rnn":
                    joint = self.linear("markov_head.joint_proj", np.concatenate([state, before, hidden[k]]))
                    gate, candidate, output = np.split(joint, 3)
                    state = sigmoid(gate) * state + (1 - sigmoid(gate)) * np.tanh(candidate)
                    latent = np.tanh(output)
                logits[k] += self.w["markov_head.markov_w2.weight"] @ latent
            if self.nested.get("enable_confidence_head"):
                with_markov = self.nested.get("confidence_head_with_markov")
                features_k = np.concatenate([hidden[k], before]) if with_markov else hidden[k]
                sure.append(float(sigmoid(self.linear("confidence_head.proj", features_k))[0]))
            anchor = int(logits[k].argmax())
            tokens.append(anchor)
        return tokens, logits, np.array(sure) if sure else None

    def domino(self, features: Array, anchor: int, count: int) -> tuple[list[int], Array]:
        """Tokens and corrected logits."""
        shifted, pure = self.nested["shift_label"], self.nested["pure_draft_prefix_len"]
        hidden = self.hidden(features, self.block(anchor, count - 1 if shifted else count))
        hidden = hidden if shifted else hidden[1:]
        logits, tokens = self.logits(hidden), []
        state = np.zeros(self.nested["gru_hidden_dim"])
        for k in range(count):
            reset_i, update_i, new_i = np.split(self.w["prefix_gru.weight_ih_l0"] @ self.table[anchor], 3)
            reset_h, update_h, new_h = np.split(self.w["prefix_gru.weight_hh_l0"] @ state, 3)
            update = sigmoid(update_i + update_h)
            fresh = np.tanh(new_i + sigmoid(reset_i + reset_h) * new_h)
            state = (1 - update) * fresh + update * state
            if k >= pure:
                squeezed = self.w["embed_proj.0.weight"] @ np.concatenate([hidden[k], state])
                logits[k] += self.w["embed_proj.2.weight"] @ (squeezed * sigmoid(squeezed))
            anchor = int(logits[k].argmax())
            tokens.append(anchor)
        return tokens, logits
