"""The target: an mlx-lm model with its tokenizer, and the few things a drafter asks of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, load_tokenizer

from macspec_models.errors import CheckpointError
from macspec_models.taps import Taps


class Target:
    """A loaded target model. Lives on one thread, the one that loaded it."""

    def __init__(self, model: Any, tokenizer: Any, config: dict[str, Any], name: str, revision: str = "") -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.name, self.revision = name, revision
        text = config.get("text_config", config)
        self.hidden_size = int(text["hidden_size"])
        self.layers = len(model.layers)
        self.max_context = int(text.get("max_position_embeddings") or 32_768)
        self._inner = _inner(model)
        self._embedding = next(self._inner[name] for name in _EMBEDDINGS if name in self._inner)
        self.vocab_size = int(text.get("vocab_size") or self._embedding.weight.shape[0])
        self.dtype = self.embed(mx.array([0])).dtype
        self._taps = Taps(self._inner.layers, ())

    @classmethod
    def load(cls, folder: Path, *, name: str = "", revision: str = "", dtype: str | None = None) -> Target:
        """Load a folder in mlx-lm's layout.

        Args:
            dtype: cast floating-point weights to ``float32``, ``float16`` or ``bfloat16``; None keeps the file's.

        Raises:
            CheckpointError: the folder is no usable checkpoint, or would run code of its own.
        """
        from macspec_models.checkpoints import check_target_folder

        check_target_folder(folder)
        try:
            model, config = load_model(folder, lazy=True, strict=True, trust_remote_code=False)
            if dtype is not None:
                model.set_dtype(getattr(mx, dtype))
            mx.eval(model.parameters())
            tokenizer = load_tokenizer(folder, _TOKENIZER, eos_token_ids=_eos(folder, config))
        except (ValueError, RuntimeError, KeyError, TypeError, OSError) as error:
            raise CheckpointError(f"{folder} cannot be loaded as a model: {error}") from error
        model.eval()
        return cls(model, tokenizer, config, name or folder.name, revision)

    @property
    def eos(self) -> frozenset[int]:
        """End-of-sequence ids: those of the configuration and of the tokenizer together."""
        return frozenset(self.tokenizer.eos_token_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        from mlx.utils import tree_flatten

        return sum(array.nbytes for _, array in tree_flatten(self.model.parameters()))

    def make_cache(self) -> list[Any]:
        """A fresh list of mlx-lm caches, one per layer."""
        return make_prompt_cache(self.model)  # type: ignore[no-any-return]

    def set_taps(self, numbers: Sequence[int]) -> None:
        """Tap the outputs after these layers from now on; an empty sequence taps none."""
        self._taps.remove()
        self._taps = Taps(self._inner.layers, numbers)

    def bare(self) -> AbstractContextManager[None]:
        """The model just as mlx-lm made it, for the length of a ``with`` block: what others are measured with."""
        return self._taps.lifted()

    def forward(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Run ``tokens [1, n]`` after what the caches hold; lazy logits ``[1, n, vocab]``."""
        return cast(mx.array, self.model(tokens, cache=cache))

    def features(self) -> mx.array | None:
        """Taps of the last forward pass ``[n, taps * width]``, or None when nothing is tapped."""
        return self._taps.features() if self._taps.numbers else None

    def embed(self, tokens: mx.array) -> mx.array:
        """The target's own embedding of token ids, before any scaling the model applies."""
        return cast(mx.array, self._embedding(tokens))

    def head(self, hidden: mx.array) -> mx.array:
        """Logits of final hidden states ``[..., width]``, by the target's own output layer."""
        for owner in (self.model, getattr(self.model, "language_model", None)):
            if owner is not None and "lm_head" in owner:
                return cast(mx.array, owner.lm_head(hidden))
        return cast(mx.array, self._embedding.as_linear(hidden))


#: Prompts that are too long are the engine's to refuse, with a sentence; the tokenizer's own limit would only print one
#: of its own on standard error.
_TOKENIZER = {"trust_remote_code": False, "model_max_length": sys.maxsize}

#: What decoder stacks call their token embedding.
_EMBEDDINGS = ("embed_tokens", "embeddings")


def _inner(model: Any) -> Any:
    """The decoder stack: the module that owns both the embedding and the list of layers."""
    queue = [model]
    while queue:
        module = queue.pop(0)
        if "layers" in module and any(name in module for name in _EMBEDDINGS):
            return module
        queue.extend(module[name] for name in ("model", "language_model", "backbone", "transformer") if name in module)
    raise CheckpointError(
        f"{type(model).__module__.rsplit('.', 1)[-1]} models are not supported: their embedding or layers have other "
        "names. Plain mlx-lm runs them."
    )


def _eos(folder: Path, config: dict[str, Any]) -> list[int] | None:
    """Union of the end-of-sequence ids of config, generation config and tokenizer config; None when none is named."""
    found: list[int] = []
    sources = [config]
    generation = folder / "generation_config.json"
    if generation.exists():
        sources.append(json.loads(generation.read_text(encoding="utf-8")))
    for source in sources:
        value = source.get("eos_token_id")
        found.extend(value if isinstance(value, list) else [] if value is None else [value])
    if not found:
        return None
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).eos_token_id
    return sorted({*found, *([] if own is None else [own])})
