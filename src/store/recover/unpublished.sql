-- unpublished: hand the relay jobs whose publication failed, or whose message no worker keeps; returns their ids.
--
--   $1 ids  $2 the dispatch of each message that was not published  $3 seconds until the relay tries
--
-- See migrations/functions/enqueue/unpublished.sql.
SELECT id FROM tenure.unpublished($1, $2, $3) AS id
