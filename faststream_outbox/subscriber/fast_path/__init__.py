"""The shortcut around FastStream's per-message machinery."""
