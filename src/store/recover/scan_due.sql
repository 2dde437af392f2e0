-- scan_due: whether a scan may be due. Every worker asks, and the answer is cheap; scan_gate.sql decides.
--
--   $1 scan_every in seconds
SELECT FROM tenure.scanner_state
 WHERE coalesce(last_scan_at < statement_timestamp() - 0.8 * $1::float8 * interval '1 second', true)
