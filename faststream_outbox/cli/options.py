"""Options of commands, made from the fields of their settings."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from faststream_outbox.cli.settings import OutboxSettings, keys_of


def with_settings(
    settings: type[OutboxSettings],
    panels: Mapping[str, Collection[str]],
    metavars: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command an option for each setting; it receives them by the settings' keys.

    `panels` groups the options in `--help`; options outside of all groups come first. A setting in `metavars` may be
    given several times, each time as what its metavar says.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
        fields = zip(keys_of(settings), settings.model_fields.values(), strict=True)
        made = [_make_option(key, field, settings, panels, (metavars or {}).get(key)) for key, field in fields]
        command.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
        return command

    return decorate


def _make_option(
    key: str,
    field: FieldInfo,
    settings: type[OutboxSettings],
    panels: Mapping[str, Collection[str]],
    metavar: str | None,
) -> inspect.Parameter:
    kinds = (field.annotation, *get_args(field.annotation))
    kind: Any = list[str] if metavar else next((each for each in (bool, int, float) if each in kinds), str)
    names = [settings.option_names[key]] if key in settings.option_names else []
    # The value of an option that is not given is None: the default belongs to the settings, and is only shown here.
    shown = f"{field.default:g}" if kind is float else field.default
    default = "" if field.is_required() or field.default is None or field.default is False else f" (default: {shown})"
    panel = next((name for name, keys in panels.items() if key in keys), None)
    option = typer.Option(*names, help=f"{field.description}{default}", metavar=metavar, rich_help_panel=panel)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
