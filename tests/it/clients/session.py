"""One session of psycopg: runs what it reads, a line at a time, and answers each line.

For tests that force an interleaving. A line is JSON: {"sql": "BEGIN"}, or {"call": "complete", "with": [...]}, a function
of tenure with its arguments; an object or an array is JSON for Postgres. The answer has the row, or the error's code.
"""

import json
import os
import sys

import psycopg
from psycopg.types.json import Jsonb

db = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
for line in sys.stdin:
    order = json.loads(line)
    try:
        if "sql" in order:
            cursor = db.execute(order["sql"])
        else:
            given = [Jsonb(a) if isinstance(a, (dict, list)) else a for a in order["with"]]
            cursor = db.execute(f"SELECT tenure.{order['call']}({', '.join(['%s'] * len(given))})", given)
        answer = {"row": cursor.fetchone()[0] if cursor.description else None}
    except psycopg.Error as error:
        answer = {"code": error.sqlstate, "message": error.diag.message_primary}
    print(json.dumps(answer, default=str), flush=True)
