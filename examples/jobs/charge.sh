#!/bin/sh
# A job that charges an account: its row and the job's end are one commit.
#
#   tenure work billing --exec 'sh charge.sh'
set -eu
# ANCHOR: charge
psql "$DATABASE_URL" -Xq -v ON_ERROR_STOP=1 -v payload="$(cat)" \
    -v job="$TENURE_JOB_ID" -v token="$TENURE_FENCING_TOKEN" -v claim="$TENURE_CLAIM_ID" >/dev/null <<'SQL'
BEGIN;
INSERT INTO charges (account, cents)
SELECT account, cents FROM jsonb_to_record(:'payload'::jsonb) AS payload (account text, cents int);
-- A stale attempt gets an error here; psql stops, and the end of its session rolls back.
SELECT tenure.complete(:'job', :token, :'claim', jsonb_build_object('charged', :'payload'::jsonb -> 'cents'));
COMMIT;
SQL
# ANCHOR_END: charge
