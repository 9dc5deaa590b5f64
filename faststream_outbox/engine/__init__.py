"""The machine that consumes rows, without FastStream: claim, dispatch, settle."""
