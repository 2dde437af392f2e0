// A job that charges an account: its row and the job's end are one commit.
//
//   tenure work billing --exec 'node charge.mjs'

import { readFileSync } from "node:fs";
import pg from "pg";

const payload = JSON.parse(readFileSync(0, "utf8"));
// ANCHOR: charge
const { TENURE_JOB_ID: job, TENURE_FENCING_TOKEN: token, TENURE_CLAIM_ID: claim } = process.env;
const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
await db.connect();
await db.query("BEGIN");
await db.query("INSERT INTO charges (account, cents) VALUES ($1, $2)", [payload.account, payload.cents]);
// An attempt that is stale gets an error here; the end of its session rolls back.
await db.query("SELECT tenure.complete($1, $2, $3, $4)", [job, token, claim, { charged: payload.cents }]);
await db.query("COMMIT");
await db.end();
// ANCHOR_END: charge
