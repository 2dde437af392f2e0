-- note_findings: what is wrong with lanes, groups and running jobs.
--
--   $1 the findings, in JSON  $2 for how many seconds they hold, if no other scan follows  $3 the checks that could not run:
--   what they found before stays, while it holds
UPDATE tenure.scanner_state s
   SET findings = $1::jsonb || coalesce((SELECT jsonb_agg(f) FROM jsonb_array_elements(s.findings) f
                                          WHERE s.findings_until > clock_timestamp() AND f ->> 'check' = ANY ($3::text[])),
                                        '[]'),
       findings_until = clock_timestamp() + $2::float8 * interval '1 second'
