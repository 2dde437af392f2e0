-- measure_alone: may this process, which is no worker, measure the fleet?
--
--   $1 after how many seconds without a measurement  $2 how many seconds it may take
--
-- One row: it may; no other process gets the answer meanwhile. No row: a worker or another process measures. A time
-- further ahead than these is of a clock that has stepped back.
UPDATE tenure.scanner_state
   SET measuring_until = clock_timestamp() + $2::float8 * interval '1 second'
 WHERE coalesce(measured_at NOT BETWEEN statement_timestamp() - $1::float8 * interval '1 second'
                                    AND statement_timestamp() + $1::float8 * interval '1 second', true)
   AND coalesce(measuring_until NOT BETWEEN statement_timestamp()
                                        AND statement_timestamp() + $2::float8 * interval '1 second', true)
RETURNING true
