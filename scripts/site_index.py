"""MkDocs hook: the README is the site's first page, with its links as they are from there."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add index.md and contributing.md, made from the files beside mkdocs.yml."""
    for source, name in (("README.md", "index.md"), ("CONTRIBUTING.md", "contributing.md")):
        with open(source, encoding="utf-8") as file:
            text = file.read()
        text = text.replace("](docs/", "](").replace("](CONTRIBUTING.md", "](contributing.md")
        files.append(File.generated(config, name, content=text))
    return files
