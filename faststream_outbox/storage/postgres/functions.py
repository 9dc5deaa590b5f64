"""Functions that publish, for programs in any language and for triggers: they do what the statements of Python do."""

from sqlalchemy import Table

from faststream_outbox.storage.checks import MAX_PAYLOADS
from faststream_outbox.storage.parking import PARKED
from faststream_outbox.storage.postgres.statements.insert import lock_class, lock_stripe
from faststream_outbox.storage.schema.functions import (
    FUNCTIONS_COMMENT,
    USUAL_SCHEMA,
    PublishFunction,
    publish_functions,
)
from faststream_outbox.storage.schema.tables import MAX_NAME_CHARS, notify_channel, quoted_name


def publish_functions_ddl(outbox_table: Table, *, schema: str = USUAL_SCHEMA) -> list[str]:
    """Return the statements that make the functions for publishing in SQL, or replace those of an older version.

    For the table `outbox` they are `outbox_publish(queue, payload, headers, key, deliver_at, timer_id)`, which returns
    the id of the row, and `outbox_publish_batch(queue, payloads, headers, keys, deliver_at)`, which returns the ids.
    A payload is `bytea`, `text` or `jsonb`. They run with the rights of the caller, who needs `EXECUTE` too.

    Args:
        outbox_table: The table of `make_outbox_table`.
        schema: The schema in which the table is, if its definition names none. The functions are made there.

    Example:
        for statement in publish_functions_ddl(outbox_table):  # in an Alembic migration
            op.execute(statement)

    """
    functions = publish_functions(outbox_table, schema)
    one, one_text, one_jsonb, many, many_text, many_jsonb = functions
    created = [
        _publish(one, outbox_table),
        _encode(one_text, "convert_to(payload, 'UTF8')", "headers"),
        _encode(one_jsonb, "convert_to(payload::text, 'UTF8')", _LABELLED),
        _publish_batch(many, outbox_table),
        _encode_batch(many_text, "convert_to(p.payload, 'UTF8')", "headers"),
        _encode_batch(many_jsonb, "convert_to(p.payload::text, 'UTF8')", _LABELLED),
    ]
    signatures = ", ".join(each.signature for each in functions)
    return [
        *created,
        *(f"COMMENT ON FUNCTION {each.signature} IS '{FUNCTIONS_COMMENT}'" for each in functions),
        f"REVOKE EXECUTE ON FUNCTION {signatures} FROM PUBLIC",
    ]


def drop_functions_ddl(outbox_table: Table, *, schema: str = USUAL_SCHEMA) -> list[str]:
    """Return the statement that drops these functions."""
    signatures = ", ".join(each.signature for each in publish_functions(outbox_table, schema))
    return [f"DROP FUNCTION IF EXISTS {signatures}"]


# What is no object stays as it is, and the function that this one calls refuses it by its type.
_LABELLED = """CASE coalesce(jsonb_typeof(headers), 'null')
      WHEN 'null' THEN jsonb_build_object('content-type', 'application/json')
      WHEN 'object' THEN jsonb_build_object('content-type', 'application/json') || headers
      ELSE headers END"""

# Nothing that a caller could define is found: all other names have their schema.
_PATH = "SET search_path = pg_catalog, pg_temp"


class _Names:
    """How a function names its table, the lock of a key, and the channel: as the statements of Python do."""

    def __init__(self, function: PublishFunction, table: Table) -> None:
        named = quoted_name(table.name, table.schema)
        self.outbox = quoted_name(table.name, function.schema)
        self.lock_class = lock_class(named)
        self.channel = notify_channel(table.name, table.schema).replace("'", "''")


def _publish(function: PublishFunction, table: Table) -> str:
    names = _Names(function, table)
    return f"""CREATE OR REPLACE FUNCTION {function.quoted}(
  queue text, payload bytea, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
  deliver_at timestamptz DEFAULT NULL, timer_id text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql {_PATH} AS $function$
#variable_conflict use_column
DECLARE
  new_id bigint;
BEGIN
{_check_name("queue")}
{_check_name("key", optional=True)}
{_check_name("timer_id", optional=True)}
{_CHECK_HEADERS}
{_CHECK_TIME}
  IF payload IS NULL THEN
    RAISE EXCEPTION 'payload is NULL: a message has a body, which may be empty.' USING ERRCODE = '22004';
  ELSIF octet_length(payload) > {MAX_PAYLOADS} THEN
    RAISE EXCEPTION 'The payload has % bytes, and {MAX_PAYLOADS} are taken.', octet_length(payload)
      USING ERRCODE = '22023', HINT = 'Store it elsewhere, and publish where it is.';
  END IF;
  -- The id fixes the order of a key: it is drawn under a lock that is held to the commit.
  IF key IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock({names.lock_class}, {lock_stripe("queue", "key")});
  END IF;
  INSERT INTO {names.outbox} (queue, entity_key, payload, headers, timer_id, next_attempt_at)
  VALUES (queue, key, payload, headers, timer_id, coalesce(deliver_at, now()))
  ON CONFLICT (queue, timer_id) WHERE timer_id IS NOT NULL DO NOTHING
  RETURNING id INTO new_id;
  IF new_id IS NOT NULL THEN
    PERFORM pg_notify('{names.channel}', queue);
  END IF;
  RETURN new_id;
END $function$"""


def _encode(function: PublishFunction, payload: str, headers: str) -> str:
    return f"""CREATE OR REPLACE FUNCTION {function.quoted}(
  queue text, payload {function.payload}, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
  deliver_at timestamptz DEFAULT NULL, timer_id text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql {_PATH} AS $function$
BEGIN
  RETURN {function.quoted}(
    queue, {payload}, {headers}, key, deliver_at, timer_id);
END $function$"""


def _publish_batch(function: PublishFunction, table: Table) -> str:
    names = _Names(function, table)
    return f"""CREATE OR REPLACE FUNCTION {function.quoted}(
  queue text, payloads bytea[], headers jsonb DEFAULT NULL, keys text[] DEFAULT NULL,
  deliver_at timestamptz DEFAULT NULL
) RETURNS bigint[] LANGUAGE plpgsql {_PATH} AS $function$
#variable_conflict use_column
DECLARE
  new_ids bigint[];
  wrong text;
BEGIN
{_check_name("queue")}
{_CHECK_HEADERS}
{_CHECK_TIME}
{_CHECK_DIMENSIONS}
  IF payloads IS NULL OR array_position(payloads, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'payloads is an array without NULL: one payload for each message.' USING ERRCODE = '22004';
  ELSIF keys IS NOT NULL AND cardinality(keys) <> cardinality(payloads) THEN
    RAISE EXCEPTION 'keys has % entries for % messages: one each, NULL for no key.',
      cardinality(keys), cardinality(payloads) USING ERRCODE = '22023';
  END IF;
  SELECT k.key INTO wrong FROM unnest(keys) AS k(key)
   WHERE char_length(k.key) NOT BETWEEN 1 AND {MAX_NAME_CHARS} LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'A key has % characters: a key has 1 to {MAX_NAME_CHARS}.', char_length(wrong)
      USING ERRCODE = '22023', HINT = 'Give NULL to a message without a key, and a hash in place of a long key.';
  END IF;
  -- All locks are taken in one order, before the first id is drawn: two batches cannot wait for each other.
  PERFORM pg_advisory_xact_lock({names.lock_class}, s.stripe)
     FROM (SELECT DISTINCT {lock_stripe("queue", "k.key")} AS stripe
             FROM unnest(keys) AS k(key) WHERE k.key IS NOT NULL ORDER BY 1) s;
  WITH made AS (
    INSERT INTO {names.outbox} (queue, entity_key, payload, headers, next_attempt_at)
    SELECT queue, r.key, r.payload, headers, coalesce(deliver_at, now())
      FROM unnest(payloads, keys) WITH ORDINALITY AS r(payload, key, n) ORDER BY r.n
    RETURNING id)
  SELECT coalesce(array_agg(m.id ORDER BY m.id), '{{}}') INTO new_ids FROM made m;
  IF cardinality(new_ids) > 0 THEN
    PERFORM pg_notify('{names.channel}', queue);
  END IF;
  RETURN new_ids;
END $function$"""


def _encode_batch(function: PublishFunction, payload: str, headers: str) -> str:
    return f"""CREATE OR REPLACE FUNCTION {function.quoted}(
  queue text, payloads {function.payload}[], headers jsonb DEFAULT NULL, keys text[] DEFAULT NULL,
  deliver_at timestamptz DEFAULT NULL
) RETURNS bigint[] LANGUAGE plpgsql {_PATH} AS $function$
BEGIN
{_CHECK_DIMENSIONS}
  RETURN {function.quoted}(
    queue,
    CASE WHEN payloads IS NOT NULL THEN ARRAY(
      SELECT {payload} FROM unnest(payloads) WITH ORDINALITY AS p(payload, n) ORDER BY p.n) END,
    {headers}, keys, deliver_at);
END $function$"""


# First of all: `unnest` and `cardinality` take an array of arrays for a longer one, and `array_position` refuses it.
_CHECK_DIMENSIONS = """  IF array_ndims(payloads) > 1 OR array_ndims(keys) > 1 THEN
    RAISE EXCEPTION 'payloads and keys have one dimension: one payload and one key for each message.'
      USING ERRCODE = '22023', HINT = 'A message that is an array is one value: ''[1, 2]''::jsonb.';
  END IF;"""


def _check_name(argument: str, *, optional: bool = False) -> str:
    empty = f"{argument} = ''" if optional else f"coalesce({argument}, '') = ''"
    instead = "Leave it out, or give it a name." if optional else "Give it a name."
    return f"""  IF {empty} THEN
    RAISE EXCEPTION '{argument} is empty.' USING ERRCODE = '22023', HINT = '{instead}';
  ELSIF char_length({argument}) > {MAX_NAME_CHARS} THEN
    RAISE EXCEPTION '{argument} has % characters and the column holds {MAX_NAME_CHARS}.', char_length({argument})
      USING ERRCODE = '22023', HINT = 'Give a shorter one, or a hash of it.';
  END IF;"""


_CHECK_HEADERS = f"""  headers := nullif(nullif(headers, 'null'), '{{}}');
  IF jsonb_typeof(headers) <> 'object' THEN
    RAISE EXCEPTION 'headers is a JSON %, not an object.', jsonb_typeof(headers)
      USING ERRCODE = '22023', HINT = 'Give names and values, such as {{"content-type": "application/json"}}.';
  ELSIF jsonb_exists(headers, '{PARKED}') THEN
    RAISE EXCEPTION 'The header {PARKED} is where the outbox keeps why a key is parked.'
      USING ERRCODE = '22023', HINT = 'Choose another name.';
  END IF;"""

# The first and the last day of Python's calendar stand for no instant, as for `broker.publish`: the zero times of other
# languages are there too. What lies beyond them is a mistake.
_CHECK_TIME = """  IF deliver_at < '0001-01-02 00:00+00' OR deliver_at >= '9999-12-31 00:00+00' THEN
    RAISE EXCEPTION 'deliver_at is %, which stands for no instant.', deliver_at
      USING ERRCODE = '22023', HINT = 'Leave it out to send now.';
  END IF;"""
