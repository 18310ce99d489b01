from __future__ import annotations

import pytest

from macspec_models import embedded, registry
from macspec_models.errors import ModelError, ModelMissingError
from macspec_models.registry import NameRefusedError


def test_every_entry_is_whole() -> None:
    pairs = registry.pairs()
    assert len(pairs) > 15
    assert next(iter(pairs)) == registry.EMBEDDED == embedded.NAME
    for pair in pairs.values():
        assert pair.status in registry.STATUSES
        assert pair.drafter.kind in registry.KINDS and pair.drafter.block >= 4
        assert pair.memory_gb > pair.size_gb
        assert pair.status != "published figure" or pair.figure
        for source in (pair.target, pair.drafter):
            assert source.licence
            if pair.name != registry.EMBEDDED:
                registry.check_repo(source.repo)
            if source.revision is not None:
                assert len(source.revision) == 40


def test_only_what_we_ran_is_called_verified() -> None:
    assert [p.name for p in registry.pairs().values() if p.status == "verified here"] == [registry.EMBEDDED]


def test_find_by_name_and_by_target() -> None:
    by_name = registry.find("qwen3-8b")
    assert by_name is not None
    assert registry.find(by_name.target.repo.upper()) == by_name
    assert registry.find("someone/else") is None
    assert {p.drafter.kind for p in registry.drafters_for(by_name.target.repo)} >= {"dflash", "dspark", "domino"}


@pytest.mark.parametrize(
    ("gigabytes", "name"),
    [
        (4, "smollm2-135m"),
        (8, "qwen3.5-4b"),
        (12, "qwen3-8b"),
        (16, "qwen3.5-9b"),
        (24, "gpt-oss-20b"),
        (128, "qwen3.8-27b"),
    ],
)
def test_best_pair_for_a_machine(gigabytes: int, name: str) -> None:
    assert registry.best_for(gigabytes << 30).name == name


def test_unknown_names_get_the_nearest() -> None:
    assert registry.nearest("qwen3-8B-instruct")[0] == "qwen3-8b"
    error = registry.unknown("qwen3.5-4")
    assert isinstance(error, ModelMissingError) and "qwen3.5-4b" in error.message
    sentence = registry.no_drafter("mlx-community/Qwen3-8B-8bit")
    assert "qwen3-8b" in sentence and "lookup" in sentence


@pytest.mark.parametrize("repo", ["mlx-community/Qwen3-8B-4bit", "a/b", "z-lab/Qwen3.5-4B-DFlash", "Huang_2020/x"])
def test_good_repository_ids(repo: str) -> None:
    assert registry.check_repo(repo) == repo


@pytest.mark.parametrize(
    "repo",
    [
        "",
        "a",
        "a/b/c",
        "../a",
        "a/..",
        "/etc/passwd",
        "a/b\0",
        "a/b\n",
        "a\\b/c",
        "mlx-c\u043emmunity/x",  # a Cyrillic o
        "a/\uff51wen",  # a full-width q
        "a/b--c",
        "a/b.git",
        ".a/b",
        "-a/b",
        "a/b.",
        "a /b",
        "a/" + "b" * 200,
        "a/b?x",
        "https://huggingface.co/a/b",
    ],
)
def test_bad_repository_ids(repo: str) -> None:
    with pytest.raises(NameRefusedError) as caught:
        registry.check_repo(repo)
    assert caught.value.message.isprintable() and caught.value.message.isascii()


@pytest.mark.parametrize(
    "name", ["config.json", "model-00001-of-00002.safetensors", "1_Pooling/config.json", "a b.json"]
)
def test_good_files(name: str) -> None:
    assert registry.check_file(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../x",
        "/x",
        "a/../../x",
        "a//b",
        "a\0",
        "c\u043enfig.json",
        "~/x",
        "-rf",
        ".hidden",
        "a\\b",
        "a/.",
        "a.",
        "a\nb",
    ],
)
def test_bad_files(name: str) -> None:
    with pytest.raises(ModelError):
        registry.check_file(name)


@pytest.mark.parametrize("revision", ["../main", "-x", "a//b", "", "a b", "refs\0"])
def test_bad_revisions(revision: str) -> None:
    with pytest.raises(NameRefusedError):
        registry.check_revision(revision)
