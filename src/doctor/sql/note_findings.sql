-- note_findings: what is wrong with lanes, groups and running jobs.
--
--   $1 the findings, in JSON  $2 for how many seconds they hold, if no other scan follows
UPDATE tenure.scanner_state
   SET findings = $1::jsonb, findings_until = clock_timestamp() + $2::float8 * interval '1 second'
