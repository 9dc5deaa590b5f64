"""Makes the page of the changelog from CHANGELOG.md, whose links start at the root of the repository."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    source = Path(config.config_file_path).with_name("CHANGELOG.md").read_text()
    without_brackets = re.sub(r"^## \[(.+?)\]", r"## \1", source, flags=re.MULTILINE)
    files.append(File.generated(config, "changelog.md", content=re.sub(r"\]\(docs/", "](", without_brackets)))
    return files
