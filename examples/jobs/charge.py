#!/usr/bin/env python3
"""A job that charges an account: its row and the job's end are one commit.

    tenure work billing --exec 'python3 charge.py'
"""

import json
import os
import sys

import psycopg
from psycopg.types.json import Jsonb

payload = json.load(sys.stdin)
# ANCHOR: charge
attempt = (os.environ["TENURE_JOB_ID"], int(os.environ["TENURE_FENCING_TOKEN"]), os.environ["TENURE_CLAIM_ID"])
# Leaving the block commits; an error, such as that of an attempt that is stale, rolls back.
with psycopg.connect(os.environ["DATABASE_URL"]) as db:
    db.execute("INSERT INTO charges (account, cents) VALUES (%s, %s)", (payload["account"], payload["cents"]))
    db.execute("SELECT tenure.complete(%s, %s, %s, %s)", (*attempt, Jsonb({"charged": payload["cents"]})))
# ANCHOR_END: charge
