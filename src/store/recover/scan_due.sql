-- scan_due: whether it may be this worker's turn to scan. Asked by every worker, and costs a look; scan_gate.sql decides.
--
--   $1 scan_every in seconds
SELECT FROM tenure.scanner_state
 WHERE coalesce(last_scan_at < statement_timestamp() - 0.8 * $1::float8 * interval '1 second', true)
