"""Names the dialog of the search for screen readers: the theme leaves it without a name."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

_UNNAMED = 'data-md-component="search" role="dialog"'


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - the signature of a hook
    """Name it on a page."""
    return _named(output)


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:  # noqa: ARG001 - the same
    """Name it on the page of errors, which is no page to MkDocs."""
    return _named(output_content)


def _named(output: str) -> str:
    return output.replace(_UNNAMED, f'{_UNNAMED} aria-label="Search"')
