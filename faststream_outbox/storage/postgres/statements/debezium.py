"""A view of the outbox with the column names of Debezium's outbox table, for moving from it or to it."""

from typing import Final, Literal, get_args

from sqlalchemy import Table

from faststream_outbox.storage.postgres.statements.insert import lock_class, lock_stripe
from faststream_outbox.storage.schema.tables import notify_channel, quoted_name

DebeziumId = Literal["uuid", "text"]
DebeziumPayload = Literal["jsonb", "json", "text", "bytea"]

_READ: Final[dict[str, str]] = {
    "jsonb": "convert_from(payload, 'UTF8')::jsonb",
    "json": "convert_from(payload, 'UTF8')::json",
    "text": "convert_from(payload, 'UTF8')",
    "bytea": "payload",
}
# A row whose id header is no UUID gets one that is made of the row's number, in hexadecimal.
_UUID: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_IDS: Final[dict[str, str]] = {
    "uuid": f"""CASE WHEN headers ->> 'id' ~* '{_UUID}'
            THEN headers ->> 'id' ELSE lpad(to_hex(id), 32, '0') END::uuid""",
    "text": "coalesce(headers ->> 'id', id::text)",
}
_WRITTEN: Final = "convert_to(NEW.payload::text, 'UTF8')"


def debezium_view_ddl(
    outbox_table: Table,
    view_name: str = "outboxevent",
    *,
    schema: str | None = None,
    id_type: DebeziumId = "uuid",
    payload: DebeziumPayload = "jsonb",
) -> list[str]:
    """Return the statements that make a view with the columns `id aggregatetype aggregateid type payload timestamp`.

    An insert into the view publishes: `aggregatetype` is the queue, `aggregateid` the key, `type` and `id` become
    headers. A DELETE has no effect: with Debezium a row is deleted right after its insert, but here it has still to be
    delivered. Rows that wait can be read from the view, and be copied to a table of Debezium's.

    Args:
        outbox_table: The table of `make_outbox_table`.
        view_name: The name of the table that Debezium read, which the view replaces.
        schema: The schema of the view.
        id_type: The type of the column `id` in Debezium's table; statements that compare it fail with another type.
        payload: The type of the payload's column. A row whose payload is not of that type cannot be read.

    Example:
        for statement in debezium_view_ddl(outbox_table):  # in an Alembic migration
            op.execute(statement)

    """
    if id_type not in get_args(DebeziumId):
        raise ValueError(f"id_type is {' or '.join(get_args(DebeziumId))}, not {id_type!r}.")
    if payload not in get_args(DebeziumPayload):
        raise ValueError(f"payload is one of {', '.join(get_args(DebeziumPayload))}, not {payload!r}.")
    outbox = quoted_name(outbox_table.name, outbox_table.schema)
    view = quoted_name(view_name, schema)
    function = quoted_name(f"{view_name}_publish", schema)
    channel = notify_channel(outbox_table.name, outbox_table.schema).replace("'", "''")
    lock = f"pg_advisory_xact_lock({lock_class(outbox)}, {lock_stripe('NEW.aggregatetype', 'NEW.aggregateid')})"
    written = "NEW.payload" if payload == "bytea" else _WRITTEN
    kind = "application/json" if payload in ("jsonb", "json") else "text/plain" if payload == "text" else None
    content_type = "NULL" if kind is None else f"'{kind}'"
    return [
        f"""CREATE VIEW {view} AS
SELECT {_IDS[id_type]} AS id, queue::text AS aggregatetype, entity_key AS aggregateid,
       headers ->> 'type' AS type, {_READ[payload]} AS payload, created_at AS "timestamp"
  FROM {outbox}""",
        f"""CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $publish$
BEGIN
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  ELSIF TG_OP = 'UPDATE' THEN
    RAISE EXCEPTION 'A published row cannot be changed.';
  END IF;
  IF NEW.aggregateid IS NOT NULL THEN
    PERFORM {lock};
  END IF;
  INSERT INTO {outbox} (queue, entity_key, payload, headers) VALUES (
    NEW.aggregatetype, NEW.aggregateid, {written},
    jsonb_strip_nulls(jsonb_build_object('id', NEW.id, 'type', NEW.type, 'content-type', {content_type}::text)));
  PERFORM pg_notify('{channel}', NEW.aggregatetype);
  RETURN NEW;
END $publish$""",
        f"""CREATE TRIGGER {quoted_name(f"{view_name}_publish")} INSTEAD OF INSERT OR UPDATE OR DELETE ON {view}
   FOR EACH ROW EXECUTE FUNCTION {function}()""",
    ]
