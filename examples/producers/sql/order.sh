#!/bin/sh
# Places an order, and enqueues its confirmation in the same transaction: order.sh MAIL
set -eu
# ANCHOR: place
# One statement is one transaction.
psql "$DATABASE_URL" -XqAt -v ON_ERROR_STOP=1 -v mail="$1" <<'SQL'
WITH placed AS (INSERT INTO orders (mail) VALUES (:'mail') RETURNING id)
SELECT tenure.enqueue('mail', 'confirm', jsonb_build_object('order', id), unique_key => 'order-' || id) FROM placed;
SQL
# ANCHOR_END: place
