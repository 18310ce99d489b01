"""Shared fixtures. Importing the models package first loads a fast BLAS before MLX is imported."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

# Tiny models gain nothing from threads and lose much when tests run side by side. It must be set before MLX is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

import macspec_models  # noqa: F401 (after the setting above, before MLX)

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def smollm_folder() -> Path:
    """Folder of the embedded target."""
    from macspec_models.embedded import target_folder

    return target_folder()


@pytest.fixture(scope="session")
def smollm(smollm_folder: Path):
    """The embedded target, loaded once."""
    from macspec_models.target import Target

    return Target.load(smollm_folder, name="smollm2-135m")


@pytest.fixture(scope="session", autouse=True)
def private_profiles(tmp_path_factory: pytest.TempPathFactory):
    """Ladders measured by tests, on a machine busy with tests, must not become the user's; nor their tokens."""
    import platformdirs

    from macspec.profiling.store import ProfileStore

    folder, original = tmp_path_factory.mktemp("profiles"), ProfileStore.__init__
    with pytest.MonkeyPatch.context() as patch:

        def private(self: ProfileStore, place: Path | None = None) -> None:
            original(self, place or folder)

        patch.setattr(ProfileStore, "__init__", private)
        patch.setattr(platformdirs, "user_data_dir", lambda *names, **options: str(folder))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Kernels run on the processor only under Linux with g++; elsewhere say so instead of failing."""
    if sys.platform == "linux" and shutil.which("g++"):
        return
    skip = pytest.mark.skip(reason="running Metal kernels on a processor needs Linux and g++")
    root = Path(__file__).parent
    for item in items:
        if any(item.path.is_relative_to(root / part) for part in ("metal", "macspec/kernels")):
            item.add_marker(skip)
