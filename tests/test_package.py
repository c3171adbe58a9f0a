"""What people install: built twice the same, with nothing missing and nothing left over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import numabind

ROOT = Path(__file__).parent.parent
NAME = f"numabind-{numabind.__version__}"
# Made by tools, or by this: no part of the source.
MADE = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "out", "site")


def build(tree: Path, what: str) -> Path:
    """Build in a folder as packagers do: no network, no environment of its own."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", what, "--directory", "out"]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    return next((tree / "out").iterdir())


def files(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "numabind"
    return Path(shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*MADE)))


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    return build(tree, "sdist")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist alone."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return build(folder / NAME, "wheel")


def test_another_person_builds_the_same(
    tree: Path, sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    """Elsewhere, at another time, under another umask, where Python has left its bytecode."""
    other = tmp_path / "elsewhere"
    shutil.copytree(tree, other, ignore=shutil.ignore_patterns(*MADE))
    (other / "src/numabind/__pycache__").mkdir()
    (other / "src/numabind/__pycache__/_cli.cpython-310.pyc").write_bytes(b"old")
    for path in [other, *other.rglob("*")]:
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (10**9, 10**9))
    assert build(other, "sdist").read_bytes() == sdist.read_bytes()
    shutil.rmtree(other / "out")
    assert build(other, "wheel").read_bytes() == wheel.read_bytes()


def test_the_wheel_has_the_package_the_command_and_the_manual(tree: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    extra = {name for name in names if name.startswith(f"{NAME}.")}
    assert names - extra == files(tree / "src")
    about = {f"{NAME}.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL")}
    about |= {f"{NAME}.dist-info/licenses/LICENSE", f"{NAME}.data/scripts/numabind"}
    assert extra == about | {f"{NAME}.data/data/share/man/man1/numabind.1"}


def test_the_sdist_has_the_source_the_tests_and_the_documents(tree: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    folders = ("src/", "scripts/", "docs/", "man/", "examples/", "tests/")
    wanted = {name for name in files(tree) if name.startswith(folders)}
    wanted |= {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "mkdocs.yml"}
    assert names == wanted | {"pyproject.toml", ".gitignore", "PKG-INFO"}


def test_it_works_where_nothing_else_is_installed(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, symlinks=True)
    python, command = str(tmp_path / "bin/python"), str(tmp_path / "bin/numabind")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", str(wheel)], check=True)
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}

    def said(*words: str) -> str:
        done = subprocess.run(
            [command, *words], env=environ, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert said("--version") == f"numabind {numabind.__version__}\n"
    assert "0000:" in said("plan", "--snapshot", str(ROOT / "examples/hgx-h100.json"))
    assert said("run", "--", "echo", "ran") == "ran\n"
    assert "complete -F _numabind" in said("completion", "bash")
    assert said("report").startswith("<!DOCTYPE html>")
    assert (tmp_path / "share/man/man1/numabind.1").is_file()
    assert list(tmp_path.glob("lib/python*/site-packages/numabind/py.typed"))
