-- scan_due: whether a scan may be due. Every worker asks, and the answer is cheap; scan_gate.sql decides.
--
-- A scan in the future is of a clock that was ahead, and counts as none. Then other times of that clock lie ahead, too.
--
--   $1 scan_every in seconds
--
-- A time of up to two seconds ahead may be of another server, before a failover.
SELECT coalesce(last_scan_at > statement_timestamp(), false) AS is_ahead FROM tenure.scanner_state
 WHERE coalesce(last_scan_at NOT BETWEEN statement_timestamp() - 0.8 * $1::float8 * interval '1 second'
                                 AND statement_timestamp() + least($1::float8, 2) * interval '1 second', true)
